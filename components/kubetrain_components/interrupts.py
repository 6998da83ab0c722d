"""Shut down cleanly on SIGTERM, as on Ctrl-C."""

import contextlib
import signal
import threading
from collections.abc import Iterator


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


def exit_code_of(interruption: BaseException | None) -> int:
    """Return the exit code that shells use: 128 plus the number of the signal."""
    return 128 + (signal.SIGTERM if isinstance(interruption, Terminated) else signal.SIGINT)


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Raise Terminated in the block if SIGTERM arrives."""
    if not _gets_signals():
        yield
        return

    def interrupt(*unused: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Run the block to its end: a Ctrl-C or SIGTERM takes effect after it."""
    if not _gets_signals():
        yield
        return
    received: list[int] = []
    on_interrupt, on_termination = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    try:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda number, frame: received.append(number))
        yield
    finally:
        try:
            signal.signal(signal.SIGINT, on_interrupt)
        finally:  # also if an interrupt arrives just now
            signal.signal(signal.SIGTERM, on_termination)
        for number in received[:1]:
            signal.raise_signal(number)


def _gets_signals() -> bool:
    return threading.current_thread() is threading.main_thread()
