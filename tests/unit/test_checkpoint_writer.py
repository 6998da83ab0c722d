"""Checkpoints are written one at a time, completed at the end, and failures are raised at the next step."""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress, complete_checkpoints
from kubetrain_trainer.output.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.stop_signal import MARKS_VARIABLE, is_saving


@pytest.fixture
def output(tmp_path: Path) -> TrainingOutput:
    output = TrainingOutput(tmp_path / "run")
    output.begin("pytorch", TrainConfig(), "")
    return output


def start(writer: CheckpointWriter, step: int, write: Callable[[Path], object]) -> None:
    writer.wait()
    writer.start(TrainingProgress(step=step), {"metrics": {"accuracy": 0.5}}, write)


def weights(path: Path) -> None:
    (path / "state").write_bytes(b"w")


def steps(output: TrainingOutput) -> list[int]:
    return [checkpoint.step for checkpoint in complete_checkpoints(output.checkpoints)]


def test_while_a_checkpoint_is_written_another_is_skipped_and_logged(
    output: TrainingOutput, caplog: pytest.LogCaptureFixture
) -> None:
    slow = threading.Event()
    writer = CheckpointWriter(output, TrainConfig())
    start(writer, 10, lambda path: (weights(path), slow.wait()))
    assert not writer.is_free(20)
    assert "skipped the checkpoint of step 20: the one of step 10 is still being written" in caplog.text
    assert steps(output) == []
    slow.set()
    writer.wait()
    assert writer.is_free(30)
    assert steps(output) == [10]


@pytest.mark.parametrize("error", [None, RuntimeError("of the loop")])
def test_a_checkpoint_being_written_is_completed_when_the_training_ends_or_fails(
    output: TrainingOutput, error: Exception | None
) -> None:
    def train() -> None:
        with CheckpointWriter(output, TrainConfig()) as writer:
            start(writer, 10, lambda path: (time.sleep(0.3), weights(path)))
            if error:
                raise error

    if error:
        with pytest.raises(RuntimeError, match="of the loop"):
            train()
    else:
        train()
    assert steps(output) == [10]


def test_the_thread_that_writes_yields_to_the_steps_and_is_marked_as_saving(
    output: TrainingOutput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARKS_VARIABLE, str(tmp_path))

    def state() -> tuple[int, bool]:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), is_saving(tmp_path, os.getpid())

    before, while_writing = state(), list[tuple[int, bool]]()
    with CheckpointWriter(output, TrainConfig()) as writer:
        start(writer, 10, lambda path: while_writing.append(state()))
    [(niceness, is_marked)] = while_writing
    assert niceness >= 10
    assert is_marked
    assert state() == before, "the steps keep their priority"


def test_a_failing_training_names_the_checkpoint_that_is_still_being_written(output: TrainingOutput) -> None:
    writer = CheckpointWriter(output, TrainConfig())
    start(writer, 10, lambda path: (time.sleep(0.2), weights(path)))
    assert writer.resume_hint() == "a new run with train.resume_from=run starts from step-00000010"


def test_a_failure_is_raised_at_the_next_step_and_leaves_no_partial_files(output: TrainingOutput) -> None:
    writer = CheckpointWriter(output, TrainConfig())
    start(writer, 10, weights)
    start(writer, 20, lambda path: (weights(path), Path("/dev/full").write_bytes(b"full")))
    with pytest.raises(KubetrainError, match=r"step 20 .*No space left.* which resumes from step-00000010"):
        writer.wait()
    with pytest.raises(KubetrainError):
        writer.check()
    assert [path.name for path in output.checkpoints.iterdir()] == ["step-00000010"]


def test_a_failure_of_the_writer_does_not_hide_one_of_the_loop(output: TrainingOutput) -> None:
    with pytest.raises(RuntimeError, match="of the loop"), CheckpointWriter(output, TrainConfig()) as writer:
        start(writer, 20, lambda path: Path("/dev/full").write_bytes(b"full"))
        raise RuntimeError("of the loop")


HANGING = """
import os, sys
from pathlib import Path
from kubetrain_trainer.output import checkpoint_writer
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.processes.entry_point import run
from kubetrain_trainer.output.training_output import TrainingOutput

checkpoint_writer.TIMEOUT_SECONDS = 0.5
output = TrainingOutput(Path(sys.argv[1]))

def train():
    os.mkfifo(output.path.parent / "hangs")
    with checkpoint_writer.CheckpointWriter(output, TrainConfig()) as writer:
        write = lambda path: (output.path.parent / "hangs").read_bytes()
        writer.start(TrainingProgress(step=10), {"metrics": {}}, write)
        raise RuntimeError("of the loop")
run(train)
"""


def test_storage_that_hangs_does_not_keep_a_failed_training_from_ending(output: TrainingOutput) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HANGING, output.path], capture_output=True, text=True, timeout=90, check=False
    )
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[-1] == "error: RuntimeError: of the loop"
    assert steps(output) == []


def test_older_checkpoints_are_removed_after_a_new_one(
    output: TrainingOutput, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with CheckpointWriter(output, TrainConfig(keep_checkpoints=1)) as writer:
        for step in (10, 20, 30):
            start(writer, step, weights)
    assert steps(output) == [30]
    assert "removed step-00000020" in caplog.text
