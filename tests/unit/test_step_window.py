"""The time of steps and of waiting for data, on a clock that the test moves."""

import math
from collections.abc import Iterator

from kubetrain_trainer.step_window import RECENT_STEPS, StepWindow, quantile


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def batches(clock: Clock, seconds: list[float]) -> Iterator[float]:
    for each in seconds:
        clock.now += each
        yield each


def train(window: StepWindow, clock: Clock, waits: list[float], computes: float = 1.0) -> None:
    for _ in window.waiting_for(batches(clock, waits)):
        clock.now += computes
        window.count_step(samples=10)


def test_the_time_of_a_step_includes_waiting_for_its_data() -> None:
    clock = Clock()
    window = StepWindow(clock)
    train(window, clock, waits=[3.0, 0.0, 1.0])
    assert list(window.step_seconds) == [4.0, 1.0, 2.0]
    assert (window.total_steps, window.total_seconds) == (3, 7.0)
    assert window.rates() == {"samples_per_second": round(30 / 7, 2), "data_wait_share": round(4 / 7, 4)}


def test_a_new_window_resets_the_rates() -> None:
    clock = Clock()
    window = StepWindow(clock)
    train(window, clock, waits=[3.0])
    window.restart()
    train(window, clock, waits=[0.0])
    assert window.rates() == {"samples_per_second": 10.0, "data_wait_share": 0.0}


def test_the_time_of_more_steps_is_at_the_speed_since_the_last_line() -> None:
    clock = Clock()
    window = StepWindow(clock)
    train(window, clock, waits=[60.0])
    window.restart()
    train(window, clock, waits=[0.0, 1.0])
    assert (window.seconds_for(10), window.seconds_for(0)) == (15.0, 0.0)


def test_pauses_are_excluded_from_the_time_of_steps() -> None:
    clock = Clock()
    window = StepWindow(clock)
    train(window, clock, waits=[0.0])
    with window.paused():
        clock.now += 100
    train(window, clock, waits=[0.0])
    assert list(window.step_seconds) == [1.0, 1.0]
    assert window.rates()["samples_per_second"] == 10.0


def test_quantiles_are_computed_from_recent_steps() -> None:
    clock = Clock()
    window = StepWindow(clock)
    train(window, clock, waits=[50.0] * RECENT_STEPS + [0.0] * RECENT_STEPS)
    assert quantile(sorted(window.step_seconds), 0.99) == 1.0


def test_a_quantile_is_a_measured_value() -> None:
    values = [float(each) for each in range(1, 11)]
    assert [quantile(values, share) for share in (0, 0.5, 0.51, 0.9, 0.99, 1)] == [1, 5, 6, 9, 10, 10]
    assert math.isnan(quantile([], 0.5))
