"""A Ctrl-C at a moment at which the main thread shares something with others."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

FUTURES = "/concurrent/futures/"


@contextmanager
def interrupt_at(moment: int, is_shared: Callable[[FrameType], bool]) -> Iterator[None]:
    """Send SIGINT to this process at one of the moments at which such a function begins or ends in this thread."""
    sys.settrace(_InterruptAt(moment, is_shared))
    try:
        yield
    finally:
        sys.settrace(None)


class _InterruptAt:
    def __init__(self, moment: int, is_shared: Callable[[FrameType], bool]) -> None:
        self.left = moment
        self._is_shared = is_shared

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self._is_shared(frame):
            return None
        if event in ("call", "return"):
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
        return self


def uses_locks_of_futures(frame: FrameType) -> bool:
    """Return True for a function that takes or releases a lock of a pool of threads."""
    own, caller = frame.f_code.co_filename, frame.f_back.f_code.co_filename if frame.f_back else ""
    takes_several = FUTURES in own and frame.f_code.co_name in ("__enter__", "__exit__")
    return takes_several or (own == threading.__file__ and FUTURES in caller)
