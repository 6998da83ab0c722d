"""SIGTERM is recorded, and handled when the training can stop."""

import signal
from collections.abc import Iterator

import pytest

from kubetrain_trainer.errors import Stopped
from kubetrain_trainer.stop_signal import StopSignal


@pytest.fixture
def answered() -> Iterator[list[int]]:
    """The signals that reach the previous handler."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    yield heard
    signal.signal(signal.SIGTERM, before)


def test_sigterm_is_recorded_and_repeating_it_changes_nothing(answered: list[int]) -> None:
    with pytest.raises(Stopped), StopSignal() as stop:
        assert not stop.is_requested
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
            assert stop.is_requested
        raise Stopped({})
    signal.raise_signal(signal.SIGTERM)  # ignored, because the process is already stopping
    assert answered == []


def test_the_previous_handler_gets_a_signal_that_came_too_late_for_the_training(answered: list[int]) -> None:
    with StopSignal():
        signal.raise_signal(signal.SIGTERM)
        assert answered == []
    assert answered == [signal.SIGTERM]


def test_the_previous_handler_is_restored(answered: list[int]) -> None:
    with pytest.raises(RuntimeError), StopSignal():
        signal.raise_signal(signal.SIGTERM)
        raise RuntimeError
    assert answered == [], "the failure is reported"
    signal.raise_signal(signal.SIGTERM)
    assert answered == [signal.SIGTERM]
