"""The trace of some steps: begun and ended at the right ones, by rank 0 alone, also after a resumption."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.reporting.profile import Profile
from kubetrain_trainer.settings.config import TrainConfig


def recorded(folder: Path, steps: range, rank: int = 0, wanted: str = "3:5") -> list[str]:
    """Return what happens in a training of these steps."""
    events: list[str] = []

    @contextmanager
    def recording(path: Path) -> Iterator[None]:
        events.append(f"begin {path.name}")
        yield
        assert path.parent.is_dir()
        events.append("end")

    role = ProcessRole(rank=rank, local_rank=rank, world_size=2, local_world_size=2)
    with Profile(TrainConfig(profile_steps=wanted), TrainingOutput(folder), role, recording) as profile:
        for step in steps:
            profile.begin_step(step)
            events.append(str(step))
            profile.end_step(step)
    return events


def test_the_trace_has_these_steps(tmp_path: Path) -> None:
    assert recorded(tmp_path, range(1, 8)) == ["1", "2", "begin steps-3-5", "3", "4", "5", "end", "6", "7"]


def test_a_resumed_training_records_those_that_are_left(tmp_path: Path) -> None:
    """In another file, beside what was recorded before."""
    assert recorded(tmp_path, range(5, 7)) == ["begin steps-5-5", "5", "end", "6"]
    assert recorded(tmp_path, range(6, 8)) == ["6", "7"]


def test_a_training_that_ends_before_ends_the_trace(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert recorded(tmp_path, range(3, 5)) == ["begin steps-3-5", "3", "4", "end"]
    assert "profile of steps 3 to 4: " in caplog.text


def test_other_processes_and_other_trainings_record_nothing(tmp_path: Path) -> None:
    assert recorded(tmp_path, range(3, 5), rank=1) == recorded(tmp_path, range(3, 5), wanted="") == ["3", "4"]


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_the_trace_of_a_training_that_fails_is_written(framework: str, tmp_path: Path) -> None:
    pytest.importorskip({"pytorch": "torch", "tensorflow": "tensorflow"}[framework])
    module = {"pytorch": "timing", "tensorflow": "training"}[framework]
    recording = import_module(f"{package_of(framework)}.{module}").recording
    with (
        pytest.raises(KeyError),
        Profile(TrainConfig(profile_steps="3:5"), TrainingOutput(tmp_path), ProcessRole(), recording) as profile,
    ):
        profile.begin_step(3)
        raise KeyError
    assert any(path.is_file() and path.stat().st_size for path in (tmp_path / "profile").rglob("*"))


@pytest.mark.parametrize("steps", ["100", "110:100", "0:5", "a:b", "1:2:3", "1:2\n"])
def test_what_is_not_a_range_of_steps_is_refused(steps: str) -> None:
    with pytest.raises(InvalidSetting, match="profile_steps must be the first and the last step, such as 100:110, not"):
        TrainConfig(profile_steps=steps)
