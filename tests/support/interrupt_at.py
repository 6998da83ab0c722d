"""A Ctrl-C at a moment at which the main thread shares something with others."""

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class InterruptAt:
    """For sys.settrace(): sends SIGINT to this process at one of the moments at which a function begins or ends."""

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
