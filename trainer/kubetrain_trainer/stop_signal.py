"""SIGTERM, as a drained node or a cancelled job sends it: heard at any time, acted on between two steps."""

import signal
from types import TracebackType
from typing import Self

from kubetrain_trainer.errors import Stopped
from kubetrain_trainer.termination import end_process

EXIT_CODE = 128 + signal.SIGTERM
"""As shells and Kubernetes count: it was asked to end, it did not fail."""


class StopSignal:
    """As a context: whether this process was asked to stop meanwhile; to ask again changes nothing."""

    def __init__(self) -> None:
        self.is_asked = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGTERM, self._hear)
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What stops must not be ended in the middle of its last words.
        signal.signal(signal.SIGTERM, signal.SIG_IGN if isinstance(error, Stopped) else self._before)
        if self.is_asked and error is None:
            signal.raise_signal(signal.SIGTERM)  # it came after the last step: whoever listened before answers it

    def _hear(self, *_: object) -> None:
        self.is_asked = True


def end_when_asked() -> None:
    """Where no training is to be saved. As the first process of a container this one would not hear it otherwise."""
    signal.signal(signal.SIGTERM, lambda *_: end_process(EXIT_CODE))
