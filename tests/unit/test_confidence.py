"""Confidence intervals: in how many of many splits they hold the true mean, and what they are at the edges."""

import math
import random

import pytest

from kubetrain_trainer.models.measures import confidence_interval


def interval(values: list[float]) -> tuple[float, float]:
    return confidence_interval(len(values), sum(values), sum(value**2 for value in values))


@pytest.mark.parametrize(
    ("correct", "wrong", "expected"),
    [(90, 10, (0.8256, 0.9448)), (50, 0, (0.9287, 1.0)), (0, 10, (0.0, 0.2775)), (9500, 500, (0.9456, 0.9541))],
)
def test_that_of_an_accuracy_is_wilsons(correct: int, wrong: int, expected: tuple[float, float]) -> None:
    assert interval([1.0] * correct + [0.0] * wrong) == pytest.approx(expected, abs=5e-5)


def test_the_spread_of_few_values_is_not_underestimated() -> None:
    assert interval([1.0, 3.0]) == pytest.approx((2 - 1.96, 2 + 1.96), abs=1e-4)


def test_equal_values_leave_no_doubt() -> None:
    assert interval([0.25] * 9) == pytest.approx((0.25, 0.25))
    assert interval([0.7] * 6) == pytest.approx((0.7, 0.7)), "also if their variance is rounded to less than 0"
    assert all(map(math.isnan, interval([7.0]))), "one value says nothing of others"
    assert len(confidence_interval(2, 1e200, math.inf)) == 2, "a value too large to square is no error"


def test_it_holds_the_mean_of_95_in_100_splits() -> None:
    generator = random.Random(0)
    splits = ([generator.expovariate(0.5) for _ in range(200)] for _ in range(2000))  # losses are not normal either
    held = sum(low <= 2 <= high for low, high in map(interval, splits))
    assert 0.93 < held / 2000 < 0.96
