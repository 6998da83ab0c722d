"""Metrics of a step, which the Kubeflow Pipelines UI shows and compares between runs.

Its API does not have them, so the log has them too.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

LINE = re.compile(r"^metrics: (\{.*\})$", re.M)


def log_numbers(metrics: Any, values: Mapping[str, Any]) -> None:
    """Log the values that are numbers in the artifact and in the log."""
    print(f"metrics: {json.dumps(show_numbers(metrics, values))}", flush=True)


def show_numbers(metrics: Any, values: Mapping[str, Any]) -> dict[str, float]:
    """Log the values that are numbers in the artifact only, because the UI accepts no others, and return them."""
    numbers = {
        name: value for name, value in values.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }
    for name, value in numbers.items():
        metrics.log_metric(name, value)
    return numbers


def numbers_in(log: str) -> dict[str, float]:
    """Return the numbers that a step has logged last; none if it has logged none."""
    lines = LINE.findall(log)
    numbers: dict[str, float] = json.loads(lines[-1]) if lines else {}
    return numbers
