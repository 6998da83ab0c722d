"""Handling of SIGTERM, which drained nodes and canceled jobs send. The training handles it between steps."""

import signal
from types import TracebackType
from typing import Self

from kubetrain_trainer.errors import Stopped
from kubetrain_trainer.termination import end_process

EXIT_CODE = 128 + signal.SIGTERM
"""The exit code that shells and Kubernetes use for a process terminated by SIGTERM."""


class StopSignal:
    """A context manager that records SIGTERM. Repeated signals have no further effect."""

    def __init__(self) -> None:
        self.is_requested = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGTERM, self._receive)
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A stopping process must not be killed while it writes its termination message.
        signal.signal(signal.SIGTERM, signal.SIG_IGN if isinstance(error, Stopped) else self._before)
        if self.is_requested and error is None:
            signal.raise_signal(signal.SIGTERM)  # it came after the last step, so the previous handler handles it

    def _receive(self, *_: object) -> None:
        self.is_requested = True


def exit_on_sigterm() -> None:
    """Exit on SIGTERM while there is no training to save. By default, the first process of a container ignores it."""
    signal.signal(signal.SIGTERM, lambda *_: end_process(EXIT_CODE))
