"""SIGTERM ends things in order, as Ctrl-C does."""

import contextlib
import signal
import threading
from collections.abc import Iterator


class Terminated(KeyboardInterrupt):
    """A SIGTERM."""


def exit_code_of(interruption: BaseException | None) -> int:
    """As shells count: 128 and the signal's number."""
    return 128 + (signal.SIGTERM if isinstance(interruption, Terminated) else signal.SIGINT)


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    def interrupt(*unused: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """What is done meanwhile is done whole: a Ctrl-C or SIGTERM is heard at its end."""
    if threading.current_thread() is not threading.main_thread():  # the others hear none
        yield
        return
    heard: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(each, lambda number, frame: heard.append(number)) for each in signals]
    try:
        yield
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)
        for number in heard[:1]:
            signal.raise_signal(number)
