"""What the time of a training was spent on, over all of its starts: time.json in its output.

Each start of rank 0 writes its seconds by cause every few seconds. They add up to the time since it began. What a
killed process did after it last wrote them counts as time in which the training did not run.
"""

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from kubetrain_trainer.durable_files import read_json, write_json

STARTED, _STARTED_ON_CLOCK = time.time(), time.perf_counter()
"""When this process started: trainers import this module before their framework, whose import takes seconds."""
START, TRAINING, REPEATED = "start", "training", "repeated"
DATA_WAIT, STRAGGLER = "data_wait", "straggler"
VALIDATION, CHECKPOINT, END, NOT_RUNNING = "validation", "checkpoint", "end", "not_running"
CAUSES = (START, TRAINING, REPEATED, DATA_WAIT, STRAGGLER, VALIDATION, CHECKPOINT, END, NOT_RUNNING)
WRITE_SECONDS = 5.0
"""Minimum time between writes while steps are taken."""
MAX_GAPS = 40
"""Number of the longest gaps in a summary, which must fit into a termination message."""


def _elapsed() -> float:
    return time.perf_counter() - _STARTED_ON_CLOCK


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of the training."""

    started: float
    """Time in seconds since the epoch."""
    step: int
    """The last step that it reported."""
    seconds: Mapping[str, float]

    @property
    def ended(self) -> float:
        return self.started + sum(self.seconds.values())


class TimeSpent:
    """The time of this start. What is booked next gets the time since the last booking, so that none is left out."""

    def __init__(
        self, path: Path, resumed_step: int, started: float = STARTED, elapsed: Callable[[], float] = _elapsed
    ) -> None:
        """Continue after the earlier starts.

        Args:
            elapsed: Returns the seconds since this process started.
        """
        self._earlier = read_starts(path)
        self._path, self._started, self._elapsed = path, started, elapsed
        self._furthest = max((start.step for start in self._earlier), default=0)
        self._step = resumed_step
        self._seconds: dict[str, float] = defaultdict(float)
        self._new_steps: dict[str, float] = defaultdict(float)
        """Seconds of the steps whose waits are not booked yet."""
        self._written_at = 0.0

    def book(self, cause: str, seconds: float | None = None) -> float:
        """Book the time since the last booking, or this part of it, and return the seconds."""
        unbooked = max(self._elapsed() - self._booked, 0.0)
        booked = unbooked if seconds is None else min(max(seconds, 0.0), unbooked)
        self._seconds[cause] += booked
        return booked

    def book_steps(self, step: int, seconds_since_first_step: float) -> None:
        """Book the time since the last booking to the steps up to this one.

        The first step belongs to the start, because it may compile. Steps that an earlier start took are repeated.
        """
        if START not in self._seconds:
            self.book(START, self._elapsed() - seconds_since_first_step)
        share = max(min(step, self._furthest) - self._step, 0) / max(step - self._step, 1)
        unbooked = max(self._elapsed() - self._booked, 0.0)
        self._new_steps[REPEATED] += self.book(REPEATED, share * unbooked)
        self._new_steps[TRAINING] += self.book(TRAINING)
        self._step = step

    def book_waits(self, seconds_by_cause: Mapping[str, float]) -> None:
        """Book what the steps since the last report waited for, which is not training."""
        # Steps that are repeated are lost as a whole, so their waits are not booked.
        training, share = self._new_steps[TRAINING], self._new_steps[TRAINING] / (sum(self._new_steps.values()) or 1.0)
        for cause, seconds in seconds_by_cause.items():
            wait = min(share * seconds, training)
            training -= wait
            self._seconds[TRAINING] -= wait
            self._seconds[cause] += wait
        self._new_steps.clear()

    def totals(self) -> dict[str, float]:
        """Return the seconds by cause over all starts, without those that may yet become waits: none ever falls."""
        totals = _totals([*self._earlier, self._start])
        return {**totals, TRAINING: totals[TRAINING] - self._new_steps[TRAINING]}

    def write(self, min_seconds: float = 0.0) -> bool:
        """Write the file, unless less time was booked since the last write. Return True if it was written."""
        if self._booked < self._written_at + min_seconds:
            return False
        self._written_at = self._booked
        with contextlib.suppress(OSError):  # no training depends on it
            _write(self._path, [*self._earlier, self._start])
            return True
        return False

    @property
    def _booked(self) -> float:
        return sum(self._seconds.values())

    @property
    def _start(self) -> Start:
        return Start(started=self._started, step=self._step, seconds=dict(self._seconds))


def read_starts(path: Path) -> list[Start]:
    """Return all starts, the oldest first; none if the file is missing or damaged: no training depends on it."""
    try:
        starts = [Start(**start) for start in read_json(path)]
        return starts if all(math.isfinite(start.ended + start.step) for start in starts) else []
    except (OSError, ValueError, TypeError, AttributeError):
        return []


def summarize(path: Path) -> dict[str, Any]:
    """Return when the training began and ended, the seconds by cause, and the longest times in which it did not run.

    Nothing is returned if the training has not reported steps.
    """
    return _summary(read_starts(path))


def conclude(path: Path, started: float = STARTED, elapsed: Callable[[], float] = _elapsed) -> dict[str, Any]:
    """Book the time since the last write of this process to the end of the training, and return the summary."""
    starts = read_starts(path)
    step = max((start.step for start in starts), default=0)
    earlier = [start for start in starts if start.started != started]
    seconds = next((start.seconds for start in starts if start.started == started), {})
    remaining = max(elapsed() - sum(seconds.values()), 0.0)
    last = Start(started=started, step=step, seconds={**seconds, END: remaining})
    with contextlib.suppress(OSError):  # a full disk must not fail a training that has succeeded
        _write(path, [*earlier, last])
    return _summary([*earlier, last])


def describe(path: Path) -> str:
    """Return in a sentence what the time was spent on until the last report; empty if there was none."""
    if not (summary := summarize(path)) or not (total := sum(summary["seconds"].values())):
        return ""
    shares = sorted(((seconds / total, cause) for cause, seconds in summary["seconds"].items()), reverse=True)
    parts = ", ".join(f"{cause.replace('_', ' ')} {share:.0%}" for share, cause in shares if share >= 0.005)
    return f"time until the last report: {total:.0f} s ({parts})"


def _summary(starts: Sequence[Start]) -> dict[str, Any]:
    if not starts:
        return {}
    gaps = sorted(_gaps(starts), key=lambda gap: gap[0] - gap[1])[:MAX_GAPS]
    seconds = {cause: round(value, 3) for cause, value in _totals(starts).items()}
    began = round(starts[0].started, 3)
    return {"began": began, "ended": round(began + sum(seconds.values()), 3), "seconds": seconds, "gaps": sorted(gaps)}


def _totals(starts: Sequence[Start]) -> dict[str, float]:
    totals = {cause: sum(start.seconds.get(cause, 0.0) for start in starts) for cause in CAUSES}
    return {**totals, NOT_RUNNING: sum(end - begin for begin, end in _gaps(starts))}


def _gaps(starts: Sequence[Start]) -> Iterator[tuple[float, float]]:
    """Yield when the training did not run. Nodes' clocks differ, so a start may seem to precede the end before it."""
    for before, after in pairwise(starts):
        if after.started > before.ended:
            yield round(before.ended, 3), round(after.started, 3)


def _write(path: Path, starts: Sequence[Start]) -> None:
    rounded = [{cause: round(value, 3) for cause, value in start.seconds.items()} for start in starts]
    write_json(path, [asdict(replace(start, seconds=seconds)) for start, seconds in zip(starts, rounded, strict=True)])
