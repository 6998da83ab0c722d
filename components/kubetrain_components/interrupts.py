"""Shut down cleanly on SIGTERM, as on Ctrl-C. Neither is ever lost."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from kubetrain_trainer.errors import KubetrainError

REPEAT_SECONDS = 0.05


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


def exit_code_of(interruption: BaseException | None) -> int:
    """Return the exit code that shells use: 128 plus the number of the signal."""
    return 128 + (signal.SIGTERM if isinstance(interruption, Terminated) else signal.SIGINT)


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Raise Terminated in the block if SIGTERM arrives. Neither it nor a Ctrl-C is lost."""
    if not _gets_signals():
        yield
        return

    def interrupt(*unused: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with _lost_interrupts_repeated():
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _lost_interrupts_repeated() -> Iterator[None]:
    """Send an interrupt again if it arrived in a finalizer, whose errors Python only prints: this one must be heard."""
    before = sys.unraisablehook

    def repeat_or_report(lost: "sys.UnraisableHookArgs") -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            number = signal.SIGTERM if issubclass(lost.exc_type, Terminated) else signal.SIGINT
            main = threading.main_thread().ident
            threading.Timer(REPEAT_SECONDS, signal.pthread_kill, (main, number)).start()  # once the finalizer has ended
        else:
            before(lost)

    sys.unraisablehook = repeat_or_report
    try:
        yield
    finally:
        sys.unraisablehook = before


def end_at_hangup(notice: str) -> None:
    """Let this process end with a notice if its terminal is closed, without the interrupt that would delete its job."""

    def end(*unused: object) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            print(notice, file=sys.stderr, flush=True)
        sys.exit(128 + signal.SIGHUP)

    if _gets_signals() and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup ignores it
        signal.signal(signal.SIGHUP, end)


@contextlib.contextmanager
def interrupts_deferred(notice: str = "", wake: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Run the block to its end: a Ctrl-C or SIGTERM takes effect after it.

    If the block fails, the interrupt has a note with the failure, which would be lost otherwise.

    Args:
        notice: What to print at the first Ctrl-C, if the block may take long.
        wake: Is called at each Ctrl-C or SIGTERM, to end what the block waits for; it may raise KeyboardInterrupt.
    """
    if not _gets_signals():
        yield
        return
    received: list[int] = []
    failure: KubetrainError | None = None

    def defer(number: int, _: object) -> None:
        received.append(number)
        wake()
        if notice and len(received) == 1:
            with contextlib.suppress(OSError, RuntimeError):  # it may have interrupted another print
                print(notice, file=sys.stderr, flush=True)

    on_interrupt, on_termination = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    try:
        for item in (signal.SIGINT, signal.SIGTERM):
            signal.signal(item, defer)
        yield
    except KubetrainError as error:
        failure = error
        raise
    finally:
        try:
            signal.signal(signal.SIGINT, on_interrupt)
        finally:  # also if an interrupt arrives just now
            signal.signal(signal.SIGTERM, on_termination)
        for number in received[:1]:
            _interrupt(number, failure)


def _interrupt(number: int, failure: KubetrainError | None) -> None:
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt as interruption:
        if failure:
            interruption.add_note(str(failure))
        raise


def _gets_signals() -> bool:
    return threading.current_thread() is threading.main_thread()
