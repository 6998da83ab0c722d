"""What happened since the last line of metrics: how fast, and how much of the time went into waiting for data."""

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")


class StepWindow:
    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.steps = 0
        self._samples = 0
        self._waited_seconds = 0.0
        self._started = time.perf_counter()

    def waiting_for(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items; the time until each is there counts as waiting."""
        iterator = iter(items)
        while True:
            asked = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            self._waited_seconds += time.perf_counter() - asked
            yield item

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What is done meanwhile is not training, and does not count as its time."""
        began = time.perf_counter()
        yield
        self._started += time.perf_counter() - began

    def count_step(self, samples: int) -> None:
        self.steps += 1
        self._samples += samples

    def rates(self) -> dict[str, Any]:
        seconds = max(time.perf_counter() - self._started, 1e-9)
        return {
            "samples_per_second": round(self._samples / seconds, 2),
            "data_wait_share": round(min(self._waited_seconds / seconds, 1.0), 4),
        }
