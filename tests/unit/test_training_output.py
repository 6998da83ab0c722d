"""The folder that a training writes: its configuration, its result and its export."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.output import grace_period
from kubetrain_trainer.output.checkpoint_layout import Checkpoint, TrainingProgress
from kubetrain_trainer.output.manifest import CorruptFiles
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.settings.config import TrainConfig


def begun(tmp_path: Path, run_id: str = "run", **settings: object) -> TrainingOutput:
    output = TrainingOutput(tmp_path / run_id)
    output.begin("pytorch", TrainConfig.from_dict(settings), "d" * 16)
    return output


def checkpoint(output: TrainingOutput, step: int) -> Checkpoint:
    details = {"metrics": {"accuracy": 0.9}}
    return output.write_checkpoint(TrainingProgress(step=step), details, lambda path: write(path / "state"))


def write(path: Path) -> None:
    path.write_bytes(b"w")


def test_checkpoints_record_their_origin(tmp_path: Path) -> None:
    manifest = checkpoint(begun(tmp_path, epochs=3), 1).manifest
    assert manifest["framework"] == "pytorch"
    assert manifest["dataset_digest"] == "d" * 16
    assert manifest["config_digest"] == TrainConfig(epochs=3).digest


def test_a_restarted_run_keeps_its_first_record(tmp_path: Path) -> None:
    output = begun(tmp_path)
    recorded = output.read_config()
    output.begin("pytorch", TrainConfig(), "d" * 16)
    assert output.read_config() == recorded


def test_another_trainings_output_is_not_touched(tmp_path: Path) -> None:
    begun(tmp_path, epochs=3)
    with pytest.raises(KubetrainError, match=r"holds the output of another training \(different: train.epochs\)"):
        begun(tmp_path, epochs=4)
    with pytest.raises(KubetrainError, match="different: framework, dataset_digest"):
        TrainingOutput(tmp_path / "run").begin("tensorflow", TrainConfig(epochs=3), "e" * 16)


def test_a_resumed_run_may_change_what_does_not_decide_what_it_learns(tmp_path: Path) -> None:
    begun(tmp_path, epochs=3)
    output = begun(tmp_path, epochs=3, log_every=1, loader_workers=2, checkpoint_every=7)
    assert output.train_config() == TrainConfig(epochs=3, log_every=1, loader_workers=2, checkpoint_every=7)
    with pytest.raises(KubetrainError, match=r"\(different: train.epochs\)"):
        begun(tmp_path, epochs=4, log_every=1)

    output.finish(checkpoint(output, 1))
    assert begun(tmp_path, epochs=3, log_every=5).train_config().log_every == 1, "what it was trained with stays"


def edit_config(output: TrainingOutput, edit: Callable[[dict[str, Any]], object]) -> None:
    record = output.read_config()
    edit(record["config"])
    (output.path / "config.json").write_text(json.dumps(record))


def test_a_run_begun_before_a_setting_was_added_is_the_same_run(tmp_path: Path) -> None:
    output = begun(tmp_path, epochs=3)
    edit_config(output, lambda config: config.pop("label_smoothing"))
    begun(tmp_path, epochs=3)
    assert checkpoint(output, 1).manifest["config_digest"] == TrainConfig(epochs=3).digest
    with pytest.raises(KubetrainError, match=r"different: train.label_smoothing"):
        begun(tmp_path, epochs=3, label_smoothing=0.1)


def test_a_run_that_uses_its_last_checkpoint_needs_no_direction_of_its_metric(tmp_path: Path) -> None:
    output = begun(tmp_path, metric="f1", select_checkpoint="last")
    begun(tmp_path, metric="f1", select_checkpoint="last")
    assert output.train_config().digest == TrainConfig(metric="f1", select_checkpoint="last").digest


def test_settings_of_another_version_are_named(tmp_path: Path) -> None:
    edit_config(begun(tmp_path), lambda config: config.update(future=1))
    with pytest.raises(KubetrainError, match=r"config\.json was written by another version .*future.*new run"):
        begun(tmp_path)


def test_a_result_is_verified_by_its_manifest(tmp_path: Path) -> None:
    output = begun(tmp_path)
    checkpoint(output, 1)
    newest = checkpoint(output, 2)
    assert output.read_result() is None
    output.finish(newest)
    result = output.read_result()
    assert result is not None
    assert (result["status"], result["checkpoint"]) == ("completed", newest.name)
    assert output.verify_result(result).step == 2

    with pytest.raises(KubetrainError, match="was replaced"):
        output.verify_result({**result, "manifest_sha256": "0" * 64})
    (newest.path / "state").unlink()
    with pytest.raises(KubetrainError, match="is missing or incomplete"):
        output.verify_result(result)


def test_of_two_starts_only_the_newer_saves(tmp_path: Path) -> None:
    output = begun(tmp_path)
    checkpoint(output, 1)
    again = "import sys; from test_training_output import *; checkpoint(begun(Path(sys.argv[1])), 2)"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    subprocess.run([sys.executable, "-c", again, tmp_path], env={"PYTHONPATH": path}, check=True)
    with pytest.raises(KubetrainError, match="another start of this run began to train") as error:
        checkpoint(output, 3)
    assert not error.value.is_curable
    assert [path.name for path in sorted(output.checkpoints.iterdir())] == ["step-00000001", "step-00000002"]


def test_an_export_that_fails_leaves_no_files_and_one_that_is_repeated_replaces_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = begun(tmp_path)
    newest = checkpoint(output, 1)
    before = {*output.path.iterdir()}
    with pytest.raises(OSError, match="No space left"):
        output.write_export(newest, {}, lambda path: (write(path / "model.pt"), Path("/dev/full").write_bytes(b"full")))
    assert {*output.path.iterdir()} == before

    flushed = []
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append(Path(f"/proc/self/fd/{file}").readlink()))
    for name in ("model.pt", "model.safetensors"):
        output.write_export(newest, {}, lambda path, name=name: write(path / name))
        assert flushed[-1] == output.path, "its name is flushed last"
    assert [file["name"] for file in output.read_export()["files"]] == ["model.safetensors"]


def test_an_export_is_complete_or_absent(tmp_path: Path) -> None:
    output = begun(tmp_path)
    best = checkpoint(output, 1)

    def killed(path: Path) -> None:
        path.joinpath("model.pt").write_bytes(b"ha")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        output.write_export(best, {}, killed)
    with pytest.raises(KubetrainError, match=r"has no export/manifest\.json"):
        output.read_export()

    output.write_export(best, {"classes": ["a"]}, lambda path: write(path / "model.pt"))
    assert output.read_export()["checkpoint"] == best.name
    (output.export / "model.pt").write_bytes(b"x")
    with pytest.raises(CorruptFiles):
        output.read_export()


def test_a_run_resumes_from_its_own_newest_checkpoint_before_another_runs(tmp_path: Path) -> None:
    other = begun(tmp_path, "other")
    checkpoint(other, 50)
    output = begun(tmp_path)
    first = output.checkpoint_to_resume("other")
    assert first is not None
    assert first.path.is_relative_to(other.path)
    checkpoint(output, 60)
    own = output.checkpoint_to_resume("other")
    assert own is not None
    assert own.path.is_relative_to(output.path)


RESUMING = """
import logging, sys; from pathlib import Path
from kubetrain_trainer.output.training_output import TrainingOutput
logging.basicConfig(format="%(message)s", stream=sys.stdout)
print(TrainingOutput(Path(sys.argv[1])).checkpoint_to_resume("").step)
"""


def test_a_save_that_takes_long_is_compared_with_the_grace_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    output, details = begun(tmp_path), {"metrics": {}}

    def save(step: int, seconds: float) -> None:
        output.write_checkpoint(TrainingProgress(step=step), details, lambda path: slowly(path, seconds))

    def slowly(path: Path, seconds: float) -> None:
        time.sleep(seconds)
        (path / "state").write_bytes(bytes(1_500_000))

    save(1, 0.6)
    assert caplog.text == "", "nothing ends a training outside a cluster"
    monkeypatch.setenv(grace_period.VARIABLE, "1")
    save(2, 0)
    assert caplog.text == ""
    for step in (3, 4):
        save(step, 0.6)
    (warning,) = caplog.messages
    told = r"a checkpoint of 0.0015 GB took 1 s: .* within pods.grace_seconds=1; set it to \d or more"
    assert re.search(told, warning)
    resumed = subprocess.run(
        [sys.executable, "-c", RESUMING, str(output.path)], check=True, capture_output=True, text=True
    )
    assert re.search(rf"{told}\n4$", resumed.stdout.strip())


def test_a_run_to_resume_from_must_have_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(KubetrainError, match="resume_from: no intact checkpoint"):
        begun(tmp_path).checkpoint_to_resume("absent")
    assert begun(tmp_path, "fresh").checkpoint_to_resume("") is None


def test_a_run_whose_checkpoints_are_all_damaged_does_not_train_from_the_start(tmp_path: Path) -> None:
    output = begun(tmp_path)
    checkpoint(begun(tmp_path, "other"), 50)
    (checkpoint(output, 1).path / "state").write_bytes(b"x")
    (checkpoint(output, 2).path / "manifest.json").write_text("{")
    for resume_from in ("", "other"):
        with pytest.raises(CorruptFiles, match=r"are damaged \(step-00000001, step-00000002\): restore one") as error:
            output.checkpoint_to_resume(resume_from)
        assert not error.value.is_curable


def test_a_proof_without_files_is_no_damaged_checkpoint(tmp_path: Path) -> None:
    output = begun(tmp_path)
    output.write_checkpoint(TrainingProgress(step=3), {"metrics": {}}, lambda path: None)
    assert output.checkpoint_to_resume("") is None


def test_a_run_of_another_framework_is_not_resumed_from(tmp_path: Path) -> None:
    checkpoint(begun(tmp_path, "other"), 50)
    output = TrainingOutput(tmp_path / "run")
    output.begin("tensorflow", TrainConfig(), "d" * 16)
    with pytest.raises(InvalidSetting, match="'other' trained with pytorch, this one trains with tensorflow"):
        output.checkpoint_to_resume("other")


def test_a_run_that_trained_other_parameters_is_not_resumed_from(tmp_path: Path) -> None:
    """The optimizer's state would be taken for that of other parameters."""
    checkpoint(begun(tmp_path, "other", freeze="0"), 50)
    with pytest.raises(InvalidSetting, match=r"'other' trained with train\.freeze='0', this one with '1'"):
        begun(tmp_path, freeze="1").checkpoint_to_resume("other")
    assert begun(tmp_path, "same", freeze=" 0,").checkpoint_to_resume("other")
    assert begun(tmp_path, "script", entry={"script": "train.py"}).checkpoint_to_resume("other")


def test_damaged_json_is_reported(tmp_path: Path) -> None:
    output = begun(tmp_path)
    (output.path / "evaluation.json").write_text("{")
    with pytest.raises(KubetrainError, match=r"evaluation.json is damaged"):
        output.read_evaluation()
