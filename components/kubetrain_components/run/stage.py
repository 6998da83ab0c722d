"""A running step: it emits events with its progress and result, and reports its failure."""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from kubetrain_components.interrupts import exit_code_of, interrupted_by_sigterm
from kubetrain_components.jobs.job_logs import print_line
from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.verdict import JobFailed
from kubetrain_components.run.events import EventLog
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.reporting.progress_line import parse_progress
from kubetrain_trainer.termination import write_termination_message

PROGRESS_SECONDS = 0.2


class Stage:
    """Prints the log of the step's job and emits its progress."""

    def __init__(self, name: str, events: EventLog) -> None:
        self.result: dict[str, Any] = {}
        """Result of the step, set if it succeeds."""
        self.progress = ""
        """The last progress line in the job's log."""
        self.first_line_at: float | None = None
        """Monotonic time of the first line of the job's log."""
        self.started = time.monotonic()
        self._name = name
        self._events = events
        self._reported_at = 0.0

    def seconds(self) -> dict[str, float]:
        """Return the duration of the startup, until the first line of the log, and of the rest."""
        first_line_at, now = self.first_line_at or time.monotonic(), time.monotonic()
        return {"startup": first_line_at - self.started, "running": now - first_line_at}

    def on_line(self, line: LogLine) -> None:
        print_line(line)
        self.first_line_at = self.first_line_at or time.monotonic()
        if (progress := parse_progress(line.text)) is None:
            return
        self.progress = line.text
        if _is_complete(progress) or time.monotonic() - self._reported_at >= PROGRESS_SECONDS:
            self._reported_at = time.monotonic()
            self._events.emit(self._name, "progress", progress=progress)


def _is_complete(progress: Mapping[str, str | float]) -> bool:
    """Return True if a part is complete, such as step=300/300."""
    fractions = (str(value).partition("/") for value in progress.values())
    return any(slash and done == total for done, slash, total in fractions)


@contextlib.contextmanager
def running_stage(name: str, run_id: str, events: EventLog) -> Iterator[Stage]:
    """Run the block as a stage; if it fails, exit with the cause as the last line of the log."""
    events.emit(name, "started", run_id=run_id)
    stage = Stage(name, events)
    try:
        with interrupted_by_sigterm():
            yield stage
    except KeyboardInterrupt as interruption:
        events.emit(name, "stopped")
        sys.exit(exit_code_of(interruption))
    except Exception as error:
        expected = isinstance(error, KubetrainError)
        sentence = str(error) if expected else f"{type(error).__name__}: {error}"
        log_tail = error.log_tail if isinstance(error, JobFailed) else ()
        events.emit(name, "failed", error=sentence, log_tail=log_tail, result=stage.result)
        write_termination_message(sentence)
        if not expected:
            raise
        last_lines = error.last_lines if isinstance(error, JobFailed) else ()
        print("\n".join([*last_lines, f"error: {sentence}"]), flush=True)
        sys.exit(1)
    events.emit(name, "finished", result=stage.result)
