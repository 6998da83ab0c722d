"""`kubetrain train` on this machine: what it says about runs that it has trained before, and about its arguments."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.follow import OtherSettings
from kubetrain_components.jobs.job_state import JobHandle, Phase
from kubetrain_components.jobs.local.record import LocalRecord, status_of
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_components.object_store.directory_store import DirectoryStore
from kubetrain_components.sync_dataset.transfer import transfer_dataset
from kubetrain_pipelines.cli.train import TrainOptions, train_and_show, training_of
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.settings.config import TrainConfig

OPTIONS = TrainOptions(run_id="b")


def options(output: Path, *pairs: str, **others: Any) -> TrainOptions:
    given = ("data.format=synthetic", "pods.workers=1", *pairs)
    return replace(OPTIONS, output=str(output), pairs=given, **others)


def training(given: TrainOptions) -> TrainingJob:
    return training_of(given, given.read(), None)


def train(given: TrainOptions) -> None:
    train_and_show(given, given.read())


def finish(done: TrainOptions) -> None:
    """Leave what a training of these options leaves when it has succeeded."""
    ended = training(done)
    job = ended.to_job()
    record = LocalRecord(ended.output_dir.parent / ".jobs" / job.identity.name)
    record.path.parent.mkdir()
    record.create(job, JobHandle(kind=job.kind, name=job.identity.name, uid="1"))
    output = TrainingOutput(ended.output_dir)
    output.begin("pytorch", TrainConfig.from_dict(ended.config.to_dict()), "")
    output.finish(output.write_checkpoint(TrainingProgress(step=7), {"metrics": {}, "world_size": 1}, lambda _: None))
    said = json.dumps(output.read_result())
    pods = [replace(pod, phase=Phase.SUCCEEDED, exit_code=0, last_words=said) for pod in job.pods()]
    record.write_state(status_of(Phase.SUCCEEDED, pods))


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("train.epochs=3", "run b has other settings (different: train.epochs): start it under"),
        (
            "pods.workers=2",
            "run b has other settings: start it under another --run-id, with --set train.resume_from=b to",
        ),
    ],
)
def test_a_run_with_other_settings_is_continued_under_another_id(pair: str, says: str, tmp_path: Path) -> None:
    finish(options(tmp_path, "train.epochs=2"))
    with pytest.raises(OtherSettings) as refused:
        train(options(tmp_path, "train.epochs=2", pair))
    assert says in str(refused.value)
    assert "delete" not in str(refused.value)


def test_a_complete_run_stays_complete_if_settings_change_that_decide_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(options(tmp_path, "train.epochs=2"))
    train(options(tmp_path, "train.epochs=2", "train.log_every=3"))
    printed = capsys.readouterr().out
    assert "run b is complete, so these have no effect: train.log_every" in printed
    assert f"trained 7 steps; the model is in {tmp_path}/b/export" in printed


@pytest.mark.parametrize(
    ("pair", "line"),
    [
        ("pods.gpus=1", "only a cluster uses pods.gpus: no effect on this machine"),
        ("storage.staging_size=1Gi", "only a cluster uses storage.staging_size: no effect on this machine"),
        ("model.gate=loss<1", "only a whole run uses model.gate: no effect on one training"),
        ("model.uri=s3://b/m", "only a whole run uses model.uri: no effect on one training"),
    ],
)
def test_a_setting_that_one_training_here_does_not_use_is_named(
    pair: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert training(options(tmp_path, pair)) == training(options(tmp_path))
    assert capsys.readouterr().out == f"{line}\n"


def test_on_a_cluster_the_settings_of_pods_apply(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = ("pods.gpus=2", "pods.max_restarts=1", "storage.staging_size=1Gi", "data.uri=s3://b/d")
    found = training(options(Path("models"), *pairs, cluster=True))
    assert (found.placement.gpus, found.placement.max_restarts) == (2, 1)
    line = "only a whole run uses data.uri, storage.staging_size: no effect on one training\n"
    assert capsys.readouterr().out == line


def test_the_dataset_of_the_file_is_read_unless_an_option_names_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "flowers.yaml"
    file.write_text("data: {uri: /nosuch/flowers}")
    asked = replace(OPTIONS, source=str(file), output=str(tmp_path / "out"))
    with pytest.raises(KubetrainError, match="/nosuch/flowers is not a directory"):
        train(asked)
    with pytest.raises(KubetrainError, match="/nosuch/other is not a directory"):
        train(replace(asked, data="/nosuch/other"))
    assert capsys.readouterr().out == ""


def test_the_output_pvc_of_the_file_is_used_on_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    train(replace(options(Path(), "storage.output_claim=mine", cluster=True, dry_run=True), output=""))
    printed = capsys.readouterr().out
    assert "claimName: mine" in printed
    assert "no effect" not in printed


def test_a_folder_of_dataset_versions_is_refused_with_the_newest_one(tmp_path: Path) -> None:
    (tmp_path / "source" / "train").mkdir(parents=True)
    (tmp_path / "source" / "train" / "a").write_text("a")
    report = transfer_dataset(DirectoryStore(tmp_path / "source"), tmp_path / "synced")
    version = tmp_path / "synced" / "versions" / report.digest
    on_versions = replace(OPTIONS, data=str(tmp_path / "synced"), output=str(tmp_path / "runs"))
    with pytest.raises(InvalidSetting, match=f"`kubetrain sync` wrote: pass one of them, .* {version}$"):
        training(on_versions)
    assert training(replace(on_versions, data=str(version))).dataset_digest == report.digest


def test_the_uri_of_a_dataset_is_refused_with_the_command_that_downloads_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="--data is s3://b/flowers, but train reads folders: `kubetrain sync` "):
        training(replace(OPTIONS, data="s3://b/flowers", output=str(tmp_path)))
