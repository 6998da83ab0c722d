"""The same request for each of many objects, such as the pods of a large job, from several threads."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from kubetrain_components.changes import Changes
from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_components.jobs.kubernetes.background import BackgroundThread

THREADS = 8

T = TypeVar("T")


def for_each(items: Sequence[T], act: Callable[[T], object]) -> None:
    """Call act for each item. A thread ends at its first error, of which one is raised; all end at an interrupt."""
    threads = [_Actor(items[first::THREADS], act) for first in range(min(THREADS, len(items)))]
    try:
        with interrupts_deferred():
            for thread in threads:
                thread.start()
        for thread in threads:
            thread.join()
    finally:
        for thread in threads:
            thread.stop()
    for error in [thread.error for thread in threads if thread.error is not None]:
        raise error


class _Actor(BackgroundThread, Generic[T]):
    def __init__(self, items: Sequence[T], act: Callable[[T], object]) -> None:
        super().__init__("one of several requests", Changes())
        self._items, self._act = items, act

    def _do_work(self) -> None:
        for item in self._items:
            if self.must_stop.is_set():
                return
            self._act(item)
