"""How long this process loads its data and waits for the others in each step; it computes in the rest of the time.

A step takes all processes equally long, because they wait for each other. Only what each does before that differs.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

Item = TypeVar("Item")
LARGE_WAIT_SHARE = 0.3
"""The fraction of time spent waiting for data above which the training warns."""
SHORTER_WAITS = "give each pod more CPUs, raise train.loader_workers (PyTorch), or store smaller images"
"""The remedies for a training that waits for data."""


class Clock(Protocol):
    """A clock of the device that computes. Its marks are moments in that device's work."""

    def mark(self) -> Any: ...

    def has_passed(self, mark: Any) -> bool: ...

    def seconds(self, began: Any, ended: Any) -> float:
        """Return the time between two marks that have passed."""


class HostClock:
    def mark(self) -> float:
        return time.perf_counter()

    def has_passed(self, mark: float) -> bool:
        return True

    def seconds(self, began: float, ended: float) -> float:
        return ended - began


class StepTimes(NamedTuple):
    """Sums of seconds over a number of steps."""

    steps: float = 0
    data: float = 0
    waiting: float = 0
    """In the all-reduce of gradients and the broadcast of buffers; 0: it cannot be told apart from computing."""
    total: float = 0

    @property
    def data_share(self) -> float:
        return self.data / self.total if self.total else 0.0

    def plus(self, other: "StepTimes") -> "StepTimes":
        return StepTimes(*map(sum, zip(self, other, strict=True)))


@dataclass
class _Step:
    asked: Any
    loaded: Any = None
    ended: Any = None
    waits: list[tuple[Any, Any]] = field(default_factory=list)


class OwnTime:
    """Leaves out the first step, which waits for what starts."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._is_first = True
        self._step = _Step(clock.mark())
        self._ended: deque[_Step] = deque()

    def loading(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items. A step begins when its item is asked for."""
        iterator = iter(items)
        while True:
            self._step = _Step(self.clock.mark())
            try:
                item = next(iterator)
            except StopIteration:
                return
            self._step.loaded = self.clock.mark()
            yield item

    def note_wait(self, began: Any, ended: Any) -> None:
        """Note that this step waited for other processes between these marks."""
        self._step.waits.append((began, ended))

    def end_step(self) -> None:
        self._step.ended = self.clock.mark()
        if not self._is_first:
            self._ended.append(self._step)
        self._is_first = False

    def read(self) -> StepTimes:
        """Return the times of the steps that have ended since the last call. A GPU is not waited for: what it has yet
        to do is part of the next answer."""
        times = StepTimes()
        while self._ended and self.clock.has_passed(self._ended[0].ended):
            times = times.plus(self._measured(self._ended.popleft()))
        return times

    def _measured(self, step: _Step) -> StepTimes:
        seconds = self.clock.seconds
        waiting = sum(seconds(began, ended) for began, ended in step.waits)
        return StepTimes(1, seconds(step.asked, step.loaded), waiting, seconds(step.asked, step.ended))
