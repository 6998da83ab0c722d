"""Rank 0 of a script of one's own waits for the other processes before it completes the output."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kubetrain_trainer.failures import TransientFailure
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.own_code.own_output import accept_model, forget_model
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.stop_signal import StopSignal

FIRST, SECOND = (ProcessRole(rank=rank, world_size=2) for rank in (0, 1))


def ended_rank_0(folder: Path, meanwhile: Callable[[TrainingOutput], None]) -> TrainingOutput:
    """Let rank 0 end first, and something happen while it waits for rank 1."""
    output = TrainingOutput(folder)
    output.begin("pytorch", TrainConfig(), "")
    for role in (FIRST, SECOND):
        forget_model(output, role)
    (output.export / "weights").write_text("1")
    later = threading.Timer(0.3, meanwhile, [output])
    later.start()
    try:
        accept_model(output, FIRST, StopSignal(), folder)
    finally:
        later.join()
    return output


def test_rank_1_may_end_between_two_looks_at_its_marks(tmp_path: Path) -> None:
    def end_slowly(output: TrainingOutput) -> None:
        (output.path / ".started-1").unlink()
        threading.Event().wait(0.3)
        accept_model(output, SECOND, StopSignal(), output.path)

    output = ended_rank_0(tmp_path / "run", end_slowly)
    assert json.loads((output.path / "result.json").read_text())["status"] == "completed"
    assert not list(output.path.glob(".started-*")) + list(output.path.glob(".ended-*"))


def test_a_rank_that_starts_again_would_wait_for_rank_0(tmp_path: Path) -> None:
    with pytest.raises(TransientFailure, match="failed first"):
        ended_rank_0(tmp_path / "run", lambda output: forget_model(output, SECOND))
