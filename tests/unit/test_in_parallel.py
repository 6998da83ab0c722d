"""Requests from several threads, of which none goes on after an error of its own or an interrupt."""

import signal
import threading
import time

import pytest

from kubetrain_components.interrupts import interrupted_by_sigterm
from kubetrain_components.jobs.kubernetes.background import THREADS, for_each, pause
from kubetrain_components.jobs.kubernetes.errors import StreamCut


@pytest.mark.parametrize("count", [0, 1, THREADS, 3 * THREADS + 1])
def test_each_item_is_acted_on_once(count: int) -> None:
    done: list[int] = []
    for_each(range(count), done.append)
    assert sorted(done) == list(range(count))


def test_an_error_is_raised_when_all_threads_have_ended() -> None:
    tried: list[int] = []

    def refuse(item: int) -> None:
        tried.append(item)
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item"):
        for_each(range(3 * THREADS), refuse)
    assert sorted(tried) == list(range(THREADS))


def test_an_interrupt_is_raised_at_once_and_ends_the_threads() -> None:
    tried: list[int] = []
    have_ended = threading.Semaphore(0)

    def retry(item: int) -> None:
        tried.append(item)
        if len(tried) == THREADS:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            pause(600)
        except StreamCut:
            have_ended.release()
            raise

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), interrupted_by_sigterm():
        for_each(range(3 * THREADS), retry)
    assert time.monotonic() - began < 60
    for _ in range(THREADS):
        assert have_ended.acquire(timeout=60)
    assert len(tried) == THREADS
