"""The learning rate: scaled, warmed up, let down."""

import pytest

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.schedule import learning_rate

CONFIG = TrainConfig(learning_rate=0.1, base_batch_size=64, warmup_epochs=2, epochs=10)


def test_the_peak_grows_linearly_with_the_global_batch() -> None:
    at_peak = [learning_rate(CONFIG, 2, global_batch) for global_batch in (32, 64, 256)]
    assert at_peak == pytest.approx([0.05, 0.1, 0.4])


def test_it_rises_linearly_from_the_first_step() -> None:
    assert learning_rate(CONFIG, 0.5, 64) == pytest.approx(0.025)
    assert learning_rate(CONFIG, 1.0, 64) == pytest.approx(0.05)
    assert learning_rate(CONFIG, 0.01, 64) > 0, "a first step that changes nothing would be wasted"


def test_cosine_ends_at_zero_and_is_half_way_at_half_time() -> None:
    assert learning_rate(CONFIG, 6, 64) == pytest.approx(0.05)
    assert learning_rate(CONFIG, 10, 64) == pytest.approx(0)
    assert learning_rate(CONFIG, 12, 64) == pytest.approx(0), "a resumed run may be told of fewer epochs"


def test_constant_stays_at_the_peak() -> None:
    constant = TrainConfig(schedule="constant", warmup_epochs=0)
    assert learning_rate(constant, 0.01, 64) == learning_rate(constant, 14, 64) == pytest.approx(0.1)
