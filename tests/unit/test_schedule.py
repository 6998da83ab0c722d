"""The learning rate: scaling, warmup and schedule."""

from dataclasses import replace

import pytest

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.schedule import averaging_decay, peak_rate, rate_factor

CONFIG = TrainConfig(learning_rate=0.1, base_batch_size=64, warmup_epochs=2, epochs=10)


def rate_at(config: TrainConfig, epochs_done: float) -> float:
    return peak_rate(config, global_batch=64) * rate_factor(config, epochs_done)


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


def test_cosine_ends_at_zero_and_is_half_the_peak_at_half_time() -> None:
    assert rate_at(CONFIG, 6) == pytest.approx(0.05)
    assert rate_at(CONFIG, 10) == pytest.approx(0)
    assert rate_at(CONFIG, 12) == pytest.approx(0), "a resumed run may be told of fewer epochs"


def test_constant_stays_at_the_peak() -> None:
    constant = TrainConfig(schedule="constant", warmup_epochs=0)
    assert rate_at(constant, 0.01) == rate_at(constant, 14) == pytest.approx(0.1)


def test_the_rate_drops_when_an_epoch_is_over_and_not_before() -> None:
    config = TrainConfig(schedule="step", step_epochs=3, step_factor=0.5, warmup_epochs=0, epochs=10)
    rates = [rate_at(config, epochs_done) for epochs_done in (0.01, 3, 3.01, 6, 6.01, 10)]
    assert rates == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025, 0.0125])


def test_drops_are_a_third_of_the_training_apart_unless_set() -> None:
    config = TrainConfig(schedule="step", epochs=90)
    assert [rate_at(config, done) for done in (30, 31, 61)] == pytest.approx([0.1, 0.01, 0.001])


def test_warmup_comes_before_the_first_drop() -> None:
    assert rate_at(replace(CONFIG, schedule="step", step_epochs=1), 1.5) == pytest.approx(0.075)


def test_the_average_of_the_weights_soon_forgets_the_initial_weights() -> None:
    config = TrainConfig(ema_decay=0.999)
    assert averaging_decay(config, 1) == pytest.approx(2 / 11)
    assert averaging_decay(config, 100_000) == 0.999
