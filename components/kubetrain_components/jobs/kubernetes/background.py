"""Threads that talk to the API server: until they are stopped or fail, or for one request for each of many objects."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from kubetrain_components.changes import Changes
from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_components.jobs.kubernetes.errors import StreamCut

THREADS = 8

T = TypeVar("T")


class Stoppable(Protocol):
    def stop(self) -> None: ...


class BackgroundThread(threading.Thread):
    """A thread with an error in place of a silent death. Stopping it ends its stream and its waits."""

    def __init__(self, name: str, changed: Changes) -> None:
        super().__init__(name=name, daemon=True)
        self.changed = changed
        """Notified when the thread ends."""
        self.error: BaseException | None = None
        """The error that ended the thread."""
        self.must_stop = threading.Event()
        self._stream: Stoppable | None = None

    def stop(self) -> None:
        self.must_stop.set()
        if (stream := self._stream) is not None:
            stream.stop()

    def hold(self, stream: Stoppable) -> None:
        """Let stop() end this stream, until it is released."""
        self._stream = stream
        if self.must_stop.is_set():
            stream.stop()

    def release(self) -> None:
        self._stream = None

    def run(self) -> None:
        try:
            self._do_work()
        except BaseException as error:  # noqa: BLE001 - raised by the follower, in the thread that can act on it
            if not self.must_stop.is_set():
                self.error = error
        finally:
            self.changed.notify()

    def _do_work(self) -> None:
        raise NotImplementedError


def pause(seconds: float) -> None:
    """Sleep; in a background thread only until it is stopped.

    Raises:
        StreamCut: if this thread was stopped.
    """
    thread = threading.current_thread()
    if not isinstance(thread, BackgroundThread):
        time.sleep(seconds)
    elif thread.must_stop.wait(seconds):
        raise StreamCut("the thread was stopped")


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
