"""What happened since the last line of metrics, and since the training began: how fast it is, and how much of the time
goes into waiting for data."""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")
RECENT_STEPS = 1000
"""So many make the quantiles of the time that a step takes."""
LARGE_WAIT_SHARE = 0.3
"""From here on, waiting for data is what to look at first when a training is slow."""


class StepWindow:
    """Host time only: waiting for a GPU at each step would slow down what is measured."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.step_seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self.total_steps = 0
        self.total_seconds = 0.0
        """Of all steps, each from the one before; its data included, what was paused for not."""
        self._last_step = clock()
        self.restart()

    def restart(self) -> None:
        self.steps = 0
        self._samples = 0
        self._waited_seconds = 0.0
        self._started = self._clock()

    def waiting_for(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items; the time until each is there counts as waiting."""
        iterator = iter(items)
        while True:
            asked = self._clock()
            try:
                item = next(iterator)
            except StopIteration:
                return
            self._waited_seconds += self._clock() - asked
            yield item

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What is done meanwhile is not training, and does not count as its time."""
        began = self._clock()
        yield
        paused_seconds = self._clock() - began
        self._started += paused_seconds
        self._last_step += paused_seconds

    def count_step(self, samples: int) -> None:
        now = self._clock()
        self.steps += 1
        self._samples += samples
        self.total_steps += 1
        self.total_seconds += now - self._last_step
        self.step_seconds.append(now - self._last_step)
        self._last_step = now

    def rates(self) -> dict[str, Any]:
        seconds = max(self._clock() - self._started, 1e-9)
        return {
            "samples_per_second": round(self._samples / seconds, 2),
            "data_wait_share": round(min(self._waited_seconds / seconds, 1.0), 4),
        }


def quantile(values: Iterable[float], share: float) -> float:
    """The least value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1] if ordered else math.nan
