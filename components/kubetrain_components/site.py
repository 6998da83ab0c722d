"""Where a step runs, and with which adapters: the one place that wires them.

The paths of a local run reach its steps through the environment: kfp.local rewrites the text "python3" in arguments.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubetrain_components.events import EventLog
from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.job import LogLine
from kubetrain_components.jobs.verdict import JobFailed
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.progress_line import parse_progress
from kubetrain_trainer.training_output import TrainingOutput

WORKSPACE_VARIABLE = "KUBETRAIN_WORKSPACE"
PROGRESS_SECONDS = 0.2


class Stage:
    """One step while it runs: hears its job's log, and passes on how far it is."""

    def __init__(self, name: str, events: EventLog) -> None:
        self.result: dict[str, Any] = {}
        """What the step has to show for itself once it succeeded."""
        self._name = name
        self._events = events
        self._spoke = 0.0

    def on_line(self, line: LogLine) -> None:
        print(f"[{line.pod}] {line.text}", flush=True)
        progress = parse_progress(line.text)
        if progress is not None and (_is_complete(progress) or time.monotonic() - self._spoke >= PROGRESS_SECONDS):
            self._spoke = time.monotonic()
            self._events.emit(self._name, "progress", **progress)


def _is_complete(progress: Mapping[str, str | float]) -> bool:
    """Whether it is the last of its kind, such as step=300/300."""
    fractions = (str(value).partition("/") for value in progress.values())
    return any(slash and done == total for done, slash, total in fractions)


@dataclass(frozen=True)
class Site:
    """This machine, with a workspace that stands for the cluster's claims."""

    workspace: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Site":
        if WORKSPACE_VARIABLE not in environment:
            raise KubetrainError(
                "this version runs its pipelines on one machine only: start them with `kubetrain run`, "
                f"which sets {WORKSPACE_VARIABLE}"
            )
        return cls(Path(environment[WORKSPACE_VARIABLE]))

    @property
    def staging(self) -> Path:
        return self.workspace / "staging"

    def output(self, run_id: str) -> TrainingOutput:
        return TrainingOutput(self.workspace / "output" / run_id)

    def dataset(self, digest: str) -> Path:
        """Where a training pod finds the dataset version."""
        return self.staging / "versions" / digest / "data"

    @contextlib.contextmanager
    def backend(self) -> Iterator[JobBackend]:
        from kubetrain_components.jobs.local_backend import LocalBackend

        with LocalBackend(self.workspace / "jobs") as backend:
            yield backend

    @contextlib.contextmanager
    def stage(self, name: str, run_id: str) -> Iterator[Stage]:
        """Tell how the step fares; where it fails, end the process with the cause as its last line."""
        events = EventLog(self.workspace / "events.jsonl")
        events.emit(name, "started", run_id=run_id)
        stage = Stage(name, events)
        try:
            with interrupted_by_sigterm():
                yield stage
        except KeyboardInterrupt:
            events.emit(name, "cancelled")
            sys.exit(130)
        except Exception as error:
            expected = isinstance(error, KubetrainError)
            sentence = str(error) if expected else f"{type(error).__name__}: {error}"
            log_tail = error.log_tail if isinstance(error, JobFailed) else ()
            events.emit(name, "failed", error=sentence, log_tail=log_tail, result=stage.result)
            if not expected:
                raise
            print(f"error: {sentence}", flush=True)
            sys.exit(1)
        events.emit(name, "finished", result=stage.result)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends things in order as Ctrl-C does."""


def threads_for_each(processes: int) -> int:
    """So many threads that all processes together keep this machine's processors busy, and none waits for one."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, available // processes)


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    def interrupt(*unused: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
