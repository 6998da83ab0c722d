"""Training speed, since the last line of metrics and since the start."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

RECENT_STEPS = 1000
"""Number of steps from which the quantiles of step times are computed."""


class StepWindow:
    """Measures host time only, because waiting for the GPU at each step would slow down the training."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.step_seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self.total_steps = 0
        self.total_seconds = 0.0
        """Time of all steps including their data, excluding pauses."""
        self._last_step = clock()
        self._first_step_ended: float | None = None
        self.restart()

    def restart(self) -> None:
        self.steps = 0
        self._samples = 0
        self._started = self._counted_from = self._clock()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time spent in this context from the training time."""
        began = self._clock()
        yield
        paused_seconds = self._clock() - began
        self._started += paused_seconds
        self._counted_from += paused_seconds
        self._last_step += paused_seconds

    def count_step(self, samples: int) -> None:
        now = self._clock()
        self.steps += 1
        self._samples += samples
        self.total_steps += 1
        self.total_seconds += now - self._last_step
        self.step_seconds.append(now - self._last_step)
        self._last_step = now
        if self._first_step_ended is None:
            self._first_step_ended = self._counted_from = now

    @property
    def seconds_since_first_step(self) -> float:
        """The time since the end of the first step; 0 before that."""
        return 0.0 if self._first_step_ended is None else self._clock() - self._first_step_ended

    @property
    def seconds(self) -> float:
        """The time since the last line of metrics, or since the end of the first step; 0 before that."""
        return 0.0 if self._first_step_ended is None else self._clock() - self._counted_from

    @property
    def samples_per_second(self) -> float:
        return round(self._samples / max(self._clock() - self._started, 1e-9), 2)

    def seconds_for(self, steps: int) -> float:
        """Return the time that this many more steps take at the speed since the last line."""
        return round(steps * (self._clock() - self._started) / max(self.steps, 1), 1)


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """Return the smallest of ascending values such that at least this fraction of them is less than or equal to it."""
    return ordered[max(math.ceil(fraction * len(ordered)), 1) - 1] if ordered else math.nan
