"""Confidence intervals of means over samples."""

import math
from collections.abc import Collection, Sequence

Interval = tuple[float, float]
DEVIATIONS = 1.959964
"""Standard deviations on both sides of the mean that hold 95% of a normal distribution."""


def confidence_intervals(names: Collection[str], sums: Sequence[float]) -> dict[str, Interval]:
    """Return the intervals of means, from the number of values, the sums of each, and those of their squares."""
    count, *totals = sums
    pairs = zip(totals, totals[len(names) :], strict=False)
    return {name: confidence_interval(int(count), *each) for name, each in zip(names, pairs, strict=True)}


def confidence_interval(count: int, total: float, squares: float) -> Interval:
    """Return the 95% confidence interval of a mean, from the number of values, their sum and that of their squares.

    Where each value is 0 or 1, as of an accuracy, it is Wilson's, which holds for few samples and few errors too.
    """
    mean, spread = total / count, DEVIATIONS**2 / count
    if abs(squares - total) <= 1e-9 * count and 0 <= mean <= 1:
        center = mean + spread / 2
        margin = math.sqrt(mean * (1 - mean) * spread + spread**2 / 4)
        return (center - margin) / (1 + spread), (center + margin) / (1 + spread)
    if count < 2:
        return math.nan, math.nan
    variance = max(squares / count - mean * mean, 0) * count / (count - 1)
    margin = math.sqrt(variance * spread)
    return mean - margin, mean + margin
