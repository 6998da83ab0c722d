"""Metrics of a step, which the Kubeflow Pipelines UI shows and compares between runs."""

from collections.abc import Mapping
from typing import Any


def log_numbers(metrics: Any, values: Mapping[str, Any]) -> None:
    """Log the values that are numbers, because the UI accepts no others."""
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            metrics.log_metric(name, value)
