"""The learning rate: scaling, warmup and schedule."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.loop.schedule import averaging_decay, peak_rate, rate_factor
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.schedule_args import SCHEDULES

CONFIG = TrainConfig(learning_rate=0.1, base_batch_size=64, warmup_epochs=2, epochs=10)
STEPS_PER_EPOCH = 100


def rate_at(config: TrainConfig, epochs_done: float) -> float:
    return peak_rate(config, global_batch=64) * factor_at(config, round(epochs_done * STEPS_PER_EPOCH))


def factor_at(config: TrainConfig, step: int) -> float:
    return rate_factor(config, step, step / STEPS_PER_EPOCH)


@pytest.mark.parametrize(
    ("scaling", "peaks"), [("linear", [0.05, 0.1, 0.4]), ("sqrt", [0.0707, 0.1, 0.2]), ("none", [0.1, 0.1, 0.1])]
)
def test_the_peak_follows_the_global_batch(scaling: str, peaks: list[float]) -> None:
    config = replace(CONFIG, lr_scaling=scaling)
    at_peak = [peak_rate(config, global_batch) for global_batch in (32, 64, 256)]
    assert at_peak == pytest.approx(peaks, abs=1e-4)


def test_the_rate_rises_linearly_from_the_first_step() -> None:
    assert rate_at(CONFIG, 0.5) == pytest.approx(0.025)
    assert rate_at(CONFIG, 1.0) == pytest.approx(0.05)
    assert rate_at(CONFIG, 0.01) > 0, "a first step that changes nothing would be wasted"


def test_cosine_is_half_the_peak_at_half_time_and_would_be_zero_after_the_last_step() -> None:
    assert rate_at(CONFIG, 6.01) == pytest.approx(0.05)
    assert rate_at(CONFIG, 10.01) == pytest.approx(0)
    assert rate_at(CONFIG, 12) == pytest.approx(0), "a resumed run may be told of fewer epochs"


@pytest.mark.parametrize("schedule", ["linear", "wsd", "cosine"])
@pytest.mark.parametrize("limits", [{}, {"max_steps": 20}, {"schedule_args": {"warmup_steps": 5}}])
def test_the_last_step_still_learns(limits: dict[str, Any], schedule: str) -> None:
    config = replace(CONFIG, schedule=schedule, **limits)
    last = config.max_steps or 1000
    assert factor_at(config, last) > 0 == pytest.approx(factor_at(config, last + 1))


def test_constant_stays_at_the_peak() -> None:
    constant = TrainConfig(schedule="constant", warmup_epochs=0)
    assert rate_at(constant, 0.01) == rate_at(constant, 14) == pytest.approx(0.1)


def test_the_rate_drops_when_an_epoch_is_over_and_not_before() -> None:
    config = TrainConfig(schedule="step", schedule_args={"epochs": 3, "factor": 0.5}, warmup_epochs=0, epochs=10)
    rates = [rate_at(config, epochs_done) for epochs_done in (0.01, 3, 3.01, 6, 6.01, 10)]
    assert rates == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025, 0.0125])


def test_drops_are_a_third_of_the_training_apart_unless_set() -> None:
    config = TrainConfig(schedule="step", epochs=90)
    assert [rate_at(config, done) for done in (30, 31, 61)] == pytest.approx([0.1, 0.01, 0.001])


def test_warmup_comes_before_the_first_drop() -> None:
    assert rate_at(replace(CONFIG, schedule="step", schedule_args={"epochs": 1}), 1.5) == pytest.approx(0.075)


def test_max_steps_is_the_horizon_of_the_whole_schedule() -> None:
    whole = TrainConfig(epochs=10, warmup_epochs=2)
    tenth = replace(whole, max_steps=100)  # of 1,000 steps
    assert [factor_at(tenth, step) for step in (1, 10, 20, 61, 101)] == pytest.approx(
        [factor_at(whole, step) for step in (10, 100, 200, 601, 1001)]
    )


def test_max_steps_beyond_the_epochs_change_nothing() -> None:
    assert factor_at(replace(CONFIG, max_steps=5000), 600) == factor_at(CONFIG, 600)


def test_the_horizon_stays_where_it_is_if_the_processes_become_more() -> None:
    config = TrainConfig(epochs=10, max_steps=200, warmup_epochs=0, schedule="linear")
    assert rate_factor(config, step=201, epochs_done=3.015) == pytest.approx(0)


@pytest.mark.parametrize(("schedule", "factor"), [("linear", 0.5), ("wsd", 1), ("cosine", 0.5), ("step", 0.1)])
def test_a_training_of_steps_goes_on_as_before_if_the_processes_become_fewer(schedule: str, factor: float) -> None:
    config = TrainConfig(epochs=10, max_steps=100, warmup_epochs=0, schedule=schedule)
    after_fifty_with_four = {"step": 51, "epochs_done": 2.01}
    assert rate_factor(config, **after_fifty_with_four) == pytest.approx(factor, abs=1e-4)


@pytest.mark.parametrize("schedule", ["linear", "wsd", "cosine", "step"])
@pytest.mark.parametrize(
    ("limits", "epochs_by_step", "changed"),
    [
        ({"max_steps": 1500}, 1 / 100, 1 / 400),
        ({"max_steps": 900}, 1 / 100, 1 / 50),
        ({"schedule_args": {"warmup_steps": 50}}, 1 / 50, 1 / 200),
    ],
)
def test_no_change_of_processes_makes_the_rate_jump(
    limits: dict[str, Any], epochs_by_step: float, changed: float, schedule: str
) -> None:
    config = replace(TrainConfig(epochs=10, warmup_epochs=0, schedule=schedule), **limits)
    at = 400 if config.schedule_args else 800
    rates = [
        rate_factor(config, step, at * epochs_by_step + (step - at) * (epochs_by_step if step < at else changed))
        for step in range(at - 5, at + 6)
    ]
    assert all(before >= after > before - 0.02 for before, after in pairwise(rates)), rates


def test_drops_come_after_whole_epochs_also_if_steps_end_the_training() -> None:
    config = TrainConfig(schedule="step", schedule_args={"epochs": 1}, warmup_epochs=0, epochs=10, max_steps=300)
    assert [factor_at(config, step) for step in (100, 101, 300)] == pytest.approx([1, 0.1, 0.01])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_warmup_can_be_counted_in_steps(schedule: str) -> None:
    config = replace(CONFIG, schedule=schedule, schedule_args={"warmup_steps": 50})
    assert [factor_at(config, step) for step in (1, 25, 50, 51)] == pytest.approx([0.02, 0.5, 1.0, 1.0], abs=1e-4)


def test_a_schedule_ends_in_the_steps_that_the_warmup_leaves() -> None:
    config = replace(CONFIG, schedule_args={"warmup_steps": 50})
    assert factor_at(config, 526) == pytest.approx(0.5), "half of what the warmup has left"
    assert factor_at(replace(config, max_steps=100), 76) == pytest.approx(0.5)


def test_a_warmup_that_never_ends_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"warmup_steps must be less than train\.max_steps \(100\), not 100"):
        TrainConfig(schedule_args={"warmup_steps": 100}, max_steps=100)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("linear", [0.9, 0.5, 0.1, 0]),
        ("wsd", [1, 1, 0.5, 0]),
        ("cosine", [0.97553, 0.5, 0.02447, 0]),
        ("constant", [1, 1, 1, 1]),
    ],
)
def test_the_shape_of_each_schedule(schedule: str, factors: list[float]) -> None:
    config = TrainConfig(schedule=schedule, warmup_epochs=0, epochs=10)
    steps = (101, 501, 901, 1001)
    assert [factor_at(config, step) for step in steps] == pytest.approx(factors, abs=1e-5)
    if schedule == "constant":
        return
    lifted = replace(config, schedule_args={"min_rate": 0.2})
    assert [factor_at(lifted, step) for step in steps] == pytest.approx(
        [0.2 + 0.8 * each for each in factors], abs=1e-5
    )
    assert factor_at(config, 1200) == pytest.approx(factors[-1]), "a resumed run may be told of fewer epochs"


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("linear", [0.5, 1, 0.5, 0.125, 0]),
        ("wsd", [0.5, 1, 1, 0.5, 0]),
        ("cosine", [0.5, 1, 0.5, 0.03806, 0]),
        ("step", [0.5, 1, 0.1, 0.01, 0.001]),
        ("constant", [0.5, 1, 1, 1, 1]),
    ],
)
def test_the_shape_of_each_schedule_after_a_warmup(schedule: str, factors: list[float]) -> None:
    config = replace(CONFIG, schedule=schedule)
    steps = (100, 200, 601, 901, 1001)
    assert [factor_at(config, step) for step in steps] == pytest.approx(factors, abs=1e-5)


def test_drops_end_at_the_lowest_rate() -> None:
    config = TrainConfig(schedule="step", epochs=90, schedule_args={"min_rate": 0.05})
    assert [factor_at(config, step) for step in (3001, 6001)] == pytest.approx([0.1, 0.05])


def test_the_average_of_the_weights_soon_forgets_the_initial_weights() -> None:
    config = TrainConfig(ema_decay=0.999)
    assert averaging_decay(config, 1) == pytest.approx(2 / 11)
    assert averaging_decay(config, 100_000) == 0.999
