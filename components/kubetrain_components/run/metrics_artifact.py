"""What the KFP UI shows, and compares between runs, as a step's metrics."""

from collections.abc import Mapping
from typing import Any


def log_numbers(metrics: Any, values: Mapping[str, Any]) -> None:
    """Those of the values that are numbers: the UI takes no others."""
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            metrics.log_metric(name, value)
