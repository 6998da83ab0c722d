"""Measure a command's cost: wall time, and the CPU time and memory of its process tree."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

LIMIT_SECONDS = 900
SAMPLE_SECONDS = 0.25


@dataclass(frozen=True)
class Cost:
    wall_seconds: float
    user_seconds: float
    system_seconds: float
    peak_bytes: int
    """Resident memory, summed over processes, so shared pages count more than once."""

    @property
    def cpu_seconds(self) -> float:
        return self.user_seconds + self.system_seconds


class CommandFailed(Exception):
    """The command failed; the message holds its last line."""


def measure(command: Sequence[str], environment: Mapping[str, str], output: Path) -> Cost:
    """Run a command to its end, with its output in a file.

    Raises:
        CommandFailed: if it exits with another code than 0, or exceeds the limit.
    """
    with output.open("wb") as sink:
        started = time.monotonic()
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
        )
        try:
            with _TreePeak(child.pid) as tree, _TimeLimit(child.pid):
                _, status, usage = os.wait4(child.pid, 0)
                wall_seconds = time.monotonic() - started
            child.returncode = os.waitstatus_to_exitcode(status)
        finally:
            _kill_group(child.pid)
            child.wait()
    if child.returncode:
        raise CommandFailed(f"exit {child.returncode}: {_last_line(output)}")
    return Cost(wall_seconds, usage.ru_utime, usage.ru_stime, max(usage.ru_maxrss * 1024, tree.peak_bytes))


class _TreePeak:
    """Sample the memory of a process tree: the kernel's peak covers the largest single process only."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._pid = pid
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "_TreePeak":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._is_over.wait(SAMPLE_SECONDS):
            with suppress(psutil.NoSuchProcess):
                root = psutil.Process(self._pid)
                processes = [root, *root.children(recursive=True)]
                self.peak_bytes = max(self.peak_bytes, sum(_resident_bytes(each) for each in processes))


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


class _TimeLimit:
    def __init__(self, pid: int) -> None:
        self._timer = threading.Timer(LIMIT_SECONDS, _kill_group, [pid])
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _last_line(output: Path) -> str:
    lines = output.read_text(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "it wrote nothing"
