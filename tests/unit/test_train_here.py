"""`kubetrain train` on this machine: what it says about runs that it has trained before, and about its arguments."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.follow import OtherSettings
from kubetrain_components.jobs.job_state import JobHandle, Phase
from kubetrain_components.jobs.local.record import LocalRecord, status_of
from kubetrain_components.object_store.directory_store import DirectoryStore
from kubetrain_components.sync_dataset.transfer import transfer_dataset
from kubetrain_pipelines.cli.train import TrainOptions, train_and_show, training_of
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.settings.config import TrainConfig

OPTIONS = TrainOptions(
    framework="pytorch",
    data="",
    output="",
    run_id="b",
    workers=1,
    min_workers=0,
    max_workers=0,
    processes_per_worker=0,
    launcher="auto",
    max_restarts=None,
    pairs=(),
)


def options(output: Path, *pairs: str, **others: Any) -> TrainOptions:
    return replace(OPTIONS, output=str(output), pairs=("data=synthetic", *pairs), **others)


def finish(done: TrainOptions) -> None:
    """Leave what a training of these options leaves when it has succeeded."""
    training = training_of(done, None)
    job = training.to_job()
    record = LocalRecord(training.output_dir.parent / ".jobs" / job.identity.name)
    record.path.parent.mkdir()
    record.create(job, JobHandle(kind=job.kind, name=job.identity.name, uid="1"))
    output = TrainingOutput(training.output_dir)
    output.begin("pytorch", TrainConfig.from_dict(training.config.to_dict()), "")
    output.finish(output.write_checkpoint(TrainingProgress(step=7), {"metrics": {}, "world_size": 1}, lambda _: None))
    said = json.dumps(output.read_result())
    pods = [replace(pod, phase=Phase.SUCCEEDED, exit_code=0, last_words=said) for pod in job.pods()]
    record.write_state(status_of(Phase.SUCCEEDED, pods))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pairs": ("data=synthetic", "epochs=3")}, "run b has other settings (different: epochs): start it under"),
        (
            {"workers": 2},
            "run b has other settings: start it under another --run-id, with --set resume_from=b to",
        ),
    ],
)
def test_a_run_with_other_settings_is_continued_under_another_id(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    finish(options(tmp_path, "epochs=2"))
    with pytest.raises(OtherSettings) as refused:
        train_and_show(replace(options(tmp_path, "epochs=2"), **changes))
    assert says in str(refused.value)
    assert "delete" not in str(refused.value)


def test_a_complete_run_stays_complete_if_settings_change_that_decide_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(options(tmp_path, "epochs=2"))
    train_and_show(options(tmp_path, "epochs=2", "log_every=3"))
    printed = capsys.readouterr().out
    assert "run b is complete, so these have no effect: log_every" in printed
    assert f"trained 7 steps; the model is in {tmp_path}/b/export" in printed


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("workers=2", "workers is an option of this command: use --workers"),
        ("launcher=job", "launcher is an option of this command: use --launcher"),
        ("dataset_uri=x", "dataset_uri is an option of this command: use --data"),
        ("max_restarts=2", "max_restarts is an option of this command: use --max-restarts"),
        ("gpus=1", "gpus applies only to a job on a cluster: add --cluster, or leave it out"),
        ("memory=4Gi", "memory applies only to a job on a cluster: add --cluster, or leave it out"),
        ("gate=loss<1", "gate applies only to runs of a pipeline: use `kubetrain run` or `kubetrain submit`"),
        ("staging_size=1Gi", "staging_size applies only to runs of a pipeline: use `kubetrain run` or"),
        ("epoch=2", "unknown setting 'epoch': did you mean 'epochs'?"),
    ],
)
def test_a_setting_of_other_commands_is_refused_with_what_to_use(pair: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=re.escape(says)):
        training_of(options(tmp_path, pair), None)


def test_on_a_cluster_the_settings_of_jobs_apply(tmp_path: Path) -> None:
    on_cluster = options(Path("models"), "gpus=2", "max_restarts=1", "model_uri=s3://b/m", cluster=True)
    with pytest.raises(InvalidSetting, match="model_uri"):  # is accepted, but only for code
        training_of(on_cluster, None)
    (tmp_path / "params.json").write_text('{"staging_claim": "data"}')
    with pytest.raises(InvalidSetting, match="staging_claim applies only to runs of a pipeline"):
        training_of(replace(on_cluster, params=tmp_path / "params.json"), None)
    training = training_of(options(Path("models"), "gpus=2", "max_restarts=1", cluster=True), None)
    assert (training.placement.gpus, training.placement.max_restarts) == (2, 1)


def test_a_folder_of_dataset_versions_is_refused_with_the_newest_one(tmp_path: Path) -> None:
    (tmp_path / "source" / "train").mkdir(parents=True)
    (tmp_path / "source" / "train" / "a").write_text("a")
    report = transfer_dataset(DirectoryStore(tmp_path / "source"), tmp_path / "synced")
    version = tmp_path / "synced" / "versions" / report.digest
    on_versions = replace(OPTIONS, data=str(tmp_path / "synced"), output=str(tmp_path / "runs"))
    with pytest.raises(InvalidSetting, match=f"`kubetrain sync` wrote: pass one of them, .* {version}$"):
        training_of(on_versions, None)
    assert training_of(replace(on_versions, data=str(version)), None).dataset_digest == report.digest


def test_the_uri_of_a_dataset_is_refused_with_the_command_that_downloads_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="--data is s3://b/flowers, but train reads folders: `kubetrain sync` "):
        training_of(replace(OPTIONS, data="s3://b/flowers", output=str(tmp_path)), None)
