"""The metric that decides which checkpoint is the best: the setting `metric`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

DIRECTIONS = {"accuracy": "max", "loss": "min", "error": "min"}
"""Whether the max or the min of a metric is best, by the ending of its name."""


class Metric(NamedTuple):
    name: str
    direction: str
    """max, min, or empty if it is unknown."""


def parse_metric(text: str) -> Metric:
    """Parse a name whose ending tells the direction, or max:NAME or min:NAME."""
    direction, _, name = text.partition(":")
    if name and direction in ("max", "min"):
        return Metric(name, direction)
    return Metric(text, direction_of(text, DIRECTIONS))


def direction_of(name: str, directions: Mapping[str, str]) -> str:
    return next((direction for ending, direction in directions.items() if name.endswith(ending)), "")
