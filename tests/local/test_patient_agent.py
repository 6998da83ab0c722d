"""A launcher whose processes must stop, because others join, waits for those that save and kills those that hang."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kubetrain_trainer import stop_signal
from kubetrain_trainer.output.checkpoint_layout import complete_checkpoints
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.stop_signal import is_saving
from kubetrain_trainer.termination import LOG_VARIABLE, parse_termination_message
from support.cli import read_until
from support.pods import pause_until_next_step
from support.process_groups import elastic_workers, start_python

DEAF = """
import os, signal, sys, time
from kubetrain_trainer.stop_signal import marked_as_saving

def wait_for(file):
    while not os.path.exists(file):
        time.sleep(0.01)

def end(*_):
    if "saves" in sys.argv:
        with marked_as_saving():
            wait_for("saved")
        wait_for("cleaned-up")
        sys.exit(143)

signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
wait_for("never")
"""
SLOW_STORAGE = """
import time
from kubetrain_trainer.output import checkpoint_layout
from kubetrain_trainer.pytorch_ddp.task import build_task as built_in
from dataclasses import replace

flush_file = checkpoint_layout.flush_file

def flush_slowly(path):
    time.sleep(6)
    flush_file(path)

def build(config, data_dir):
    checkpoint_layout.flush_file = flush_slowly
    return built_in(replace(config, model="digits_cnn"), data_dir)
"""
HASTY_LAUNCH = """
import sys
from kubetrain_trainer.pytorch_ddp.launching import launch, patient_agent
from kubetrain_trainer.termination import end_process

patient_agent.TIMEOUT_SECONDS = 2
end_process(launch.launch(sys.argv[1:]))
"""
"""As launch.py ends: Python's own end may abort in a thread of torchrun that asks the store."""


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "marks").mkdir()
    monkeypatch.setenv(stop_signal.MARKS_VARIABLE, str(tmp_path / "marks"))
    return tmp_path / "marks"


class Clock:
    """Time that passes only while the agent waits. What is due then happens first."""

    def __init__(self, due: dict[float, Callable[[], object]]) -> None:
        self._now, self._due = 0.0, due

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds
        for moment in [moment for moment in self._due if moment <= self._now]:
            self._due.pop(moment)()


@pytest.fixture
def processes(marks: Path) -> Iterator[dict[int, "subprocess.Popen[str]"]]:
    """Two processes: rank 3 does not end, rank 5 saves first."""
    started = {
        rank: subprocess.Popen(
            [sys.executable, "-c", DEAF, what],
            cwd=marks.parent,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for rank, what in ((3, "hangs"), (5, "saves"))
    }
    for process in started.values():
        read_until(process, "ready")
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


def test_a_process_that_saves_is_waited_for_and_one_that_hangs_is_killed(
    processes: dict[int, "subprocess.Popen[str]"],
    marks: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from kubetrain_trainer.pytorch_ddp.launching import patient_agent

    def saved() -> None:
        (marks.parent / "saved").touch()
        wait_until(lambda: not any(marks.iterdir()))

    def cleaned_up() -> None:
        (marks.parent / "cleaned-up").touch()
        processes[5].wait()

    due = {0.0: lambda: wait_until(lambda: any(marks.iterdir())), 40.0: saved, 60.0: cleaned_up}
    monkeypatch.setattr(patient_agent, "time", Clock(due))
    patient_agent.stop(processes, marks)
    assert processes[5].wait() == 143
    assert processes[3].wait() == -signal.SIGKILL
    assert capsys.readouterr().out == "rank 3 did not end within 70 s after SIGTERM: it is killed\n"


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


def test_a_process_is_marked_while_it_saves(marks: Path) -> None:
    assert not is_saving(marks, os.getpid())
    with stop_signal.marked_as_saving():
        assert is_saving(marks, os.getpid())
        assert not is_saving(marks, os.getpid() + 1)
    assert not is_saving(marks, os.getpid())
    stop_signal.mark_as_saving_until_exit()
    assert is_saving(marks, os.getpid())


@pytest.mark.slow
def test_the_processes_of_an_elastic_job_are_not_restarted_after_an_error_that_no_restart_can_cure(
    tmp_path: Path,
) -> None:
    (tmp_path / "termination").touch()
    command, both = elastic_workers(tmp_path, tmp_path / "output")
    message = {LOG_VARIABLE: str(tmp_path / "termination")}
    pod = start_python(*command[1:], cwd=tmp_path, **both[0], **message)
    with pod:
        try:
            printed = pod.communicate(timeout=100)[0]
        finally:
            pod.kill()
    assert (pod.returncode, printed.count("error: ")) == (1, 1), printed
    assert "has no folder 'train'" in parse_termination_message((tmp_path / "termination").read_text())["error"]


@pytest.mark.thorough
@pytest.mark.slow
def test_a_save_on_slow_storage_survives_that_a_worker_joins(digits: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SLOW_STORAGE)
    (tmp_path / "hasty.py").write_text(HASTY_LAUNCH)
    command, both = elastic_workers(digits, tmp_path, model="own:build")
    flags = command[3:]

    first = start_python("hasty.py", *flags, cwd=tmp_path, **both[0])
    read_until(first, "[kubetrain] step=20/")
    second = start_python("hasty.py", *flags, cwd=tmp_path, **both[1])
    try:
        pause = pause_until_next_step(first)
    finally:
        for process in (first, second):
            process.send_signal(signal.SIGTERM)
        ends = [process.communicate(timeout=90)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [143, 143], ends
    stopped_at = int(pause.output.partition("stopped by SIGTERM after step ")[2].partition(":")[0])
    assert stopped_at >= 20
    assert f"rank 0 resumes from {tmp_path}/checkpoints/step-{stopped_at:08}" in pause.output
    assert "2 processes," in pause.output
    assert complete_checkpoints(TrainingOutput(tmp_path).checkpoints)[-1].step > stopped_at
