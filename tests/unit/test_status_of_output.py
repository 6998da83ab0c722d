"""`kubetrain status` of the output of a run whose job is gone, as after Ctrl-C of `kubetrain train`."""

from pathlib import Path

import pytest

from kubetrain_pipelines.jobs.local_jobs import JobGone
from kubetrain_pipelines.status.local import read_local
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.settings.config import TrainConfig


@pytest.fixture
def output(tmp_path: Path) -> TrainingOutput:
    (tmp_path / ".jobs").mkdir()
    output = TrainingOutput(tmp_path / "a")
    output.begin("pytorch", TrainConfig(), "")
    return output


def status(output: TrainingOutput) -> str:
    with pytest.raises(KubetrainError) as shown:
        read_local(output.path)
    assert not isinstance(shown.value, InvalidSetting), "the command was right"
    return str(shown.value)


def test_a_stopped_run_is_resumed_at_its_newest_checkpoint(output: TrainingOutput) -> None:
    for step in (5, 9):
        output.write_checkpoint(TrainingProgress(step=step), {"metrics": {}}, lambda folder: (folder / "a").touch())
    assert status(output) == (
        "run a was stopped, and its newest checkpoint is of step 9: `kubetrain train` with the same settings, --output "
        "and --run-id a resumes it there"
    )


def test_a_stopped_run_without_a_checkpoint_starts_again(output: TrainingOutput) -> None:
    assert status(output).startswith("run a was stopped, and it has no checkpoint: ")
    assert status(output).endswith("--run-id a starts it again")


def test_a_finished_run_has_its_model(output: TrainingOutput) -> None:
    (output.path / "result.json").write_text("{}")
    assert status(output) == f"run a has finished, and its job was deleted: its model is in {output.export}"


def test_a_folder_that_no_run_has_written_is_refused(output: TrainingOutput) -> None:
    (output.path.parent / "other").mkdir()
    with pytest.raises(JobGone, match="no longer has the job of run other"):
        read_local(output.path.parent / "other")
