"""The time of steps, on a clock that the test moves."""

import math

from kubetrain_trainer.reporting.step_window import RECENT_STEPS, StepWindow, quantile


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def train(window: StepWindow, clock: Clock, *seconds: float) -> None:
    for each in seconds:
        clock.now += each
        window.count_step(samples=10)


def test_steps_and_their_speed() -> None:
    clock = Clock()
    window = StepWindow(clock)
    train(window, clock, 4, 1, 2)
    assert list(window.step_seconds) == [4, 1, 2]
    assert (window.total_steps, window.total_seconds) == (3, 7)
    assert window.samples_per_second == round(30 / 7, 2)


def test_a_new_window_has_its_own_speed() -> None:
    clock = Clock()
    window = StepWindow(clock)
    train(window, clock, 4)
    window.restart()
    train(window, clock, 1)
    assert window.samples_per_second == 10


def test_the_seconds_of_a_window_begin_after_the_first_step() -> None:
    clock = Clock()
    window = StepWindow(clock)
    assert window.seconds == 0
    train(window, clock, 60, 2, 1)
    assert window.seconds == 3
    with window.paused():
        clock.now += 100
    assert window.seconds == 3
    window.restart()
    train(window, clock, 1)
    assert window.seconds == 1


def test_the_time_of_more_steps_is_at_the_speed_since_the_last_line() -> None:
    clock = Clock()
    window = StepWindow(clock)
    train(window, clock, 60)
    window.restart()
    train(window, clock, 1, 2)
    assert (window.seconds_for(10), window.seconds_for(0)) == (15.0, 0.0)


def test_pauses_are_excluded_from_the_time_of_steps() -> None:
    clock = Clock()
    window = StepWindow(clock)
    train(window, clock, 1)
    with window.paused():
        clock.now += 100
    train(window, clock, 1)
    assert list(window.step_seconds) == [1.0, 1.0]
    assert window.samples_per_second == 10.0


def test_quantiles_are_computed_from_recent_steps() -> None:
    clock = Clock()
    window = StepWindow(clock)
    train(window, clock, *[50.0] * RECENT_STEPS, *[1.0] * RECENT_STEPS)
    assert quantile(sorted(window.step_seconds), 0.99) == 1.0


def test_a_quantile_is_a_measured_value() -> None:
    values = [float(each) for each in range(1, 11)]
    assert [quantile(values, share) for share in (0, 0.5, 0.51, 0.9, 0.99, 1)] == [1, 5, 6, 9, 10, 10]
    assert math.isnan(quantile([], 0.5))
