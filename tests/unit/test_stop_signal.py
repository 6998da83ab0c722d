"""A SIGTERM is heard, and answered once the training can be left."""

import signal
from collections.abc import Iterator

import pytest

from kubetrain_trainer.errors import Stopped
from kubetrain_trainer.stop_signal import StopSignal


@pytest.fixture
def answered() -> Iterator[list[int]]:
    """The signals that reach whoever listened before."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    yield heard
    signal.signal(signal.SIGTERM, before)


def test_it_is_heard_and_to_ask_again_changes_nothing(answered: list[int]) -> None:
    with pytest.raises(Stopped), StopSignal() as stop:
        assert not stop.is_asked
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
            assert stop.is_asked
        raise Stopped({})
    signal.raise_signal(signal.SIGTERM)  # what stops already is left to say its last words
    assert answered == []


def test_who_listened_before_hears_what_came_too_late_for_the_training(answered: list[int]) -> None:
    with StopSignal():
        signal.raise_signal(signal.SIGTERM)
        assert answered == []
    assert answered == [signal.SIGTERM]


def test_who_listened_before_is_back_afterwards(answered: list[int]) -> None:
    with pytest.raises(RuntimeError), StopSignal():
        raise RuntimeError
    assert answered == []
    signal.raise_signal(signal.SIGTERM)
    assert answered == [signal.SIGTERM]
