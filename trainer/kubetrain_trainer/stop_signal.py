"""Handling of SIGTERM, which drained nodes and canceled jobs send. The training handles it between steps.

Processes that save tell it the launcher of their pod by marks, empty files in a folder of its own, so that it does not
kill them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from kubetrain_trainer.errors import Stopped
from kubetrain_trainer.termination import end_process

EXIT_CODE = 128 + signal.SIGTERM
"""The exit code that shells and Kubernetes use for a process terminated by SIGTERM."""
MARKS_VARIABLE = "KUBETRAIN_SAVING_MARKS"
"""The environment variable with the folder of the marks. Without a launcher it is not set."""


class StopSignal:
    """A context manager that records SIGTERM. Repeated signals have no further effect."""

    def __init__(self) -> None:
        self.is_requested = False

    def __enter__(self) -> StopSignal:
        self._is_heard = threading.current_thread() is threading.main_thread()  # Ray Train runs scripts in others
        if self._is_heard:
            self._before = signal.signal(signal.SIGTERM, self._receive)
        return self

    def __exit__(self, error_type: object, error: BaseException | None, trace: object) -> None:
        if not self._is_heard:
            return
        # A stopping process must not be killed while it writes its termination message.
        signal.signal(signal.SIGTERM, signal.SIG_IGN if isinstance(error, Stopped) else self._before)
        if self.is_requested and error is None:
            signal.raise_signal(signal.SIGTERM)  # it came after the last step, so the previous handler handles it

    def _receive(self, *_: object) -> None:
        self.is_requested = True


def exit_on_sigterm() -> None:
    """Exit on SIGTERM before the training has anything to save. By default, a container's first process ignores it."""
    signal.signal(signal.SIGTERM, lambda *_: end_process(EXIT_CODE))


@contextlib.contextmanager
def marked_as_saving() -> Iterator[None]:
    """Mark this process in this context."""
    mark = _mark(f"{os.getpid()}-{threading.get_native_id()}")
    try:
        yield
    finally:
        if mark:
            mark.unlink(missing_ok=True)


def mark_as_saving_until_exit() -> None:
    _mark(f"{os.getpid()}-exit")


def is_saving(folder: Path, process_id: int) -> bool:
    return any(folder.glob(f"{process_id}-*"))


def _mark(name: str) -> Path | None:
    folder = os.environ.get(MARKS_VARIABLE)
    if not folder:
        return None
    with contextlib.suppress(OSError):  # a missing mark must not fail a save
        Path(folder, name).touch()
    return Path(folder, name)
