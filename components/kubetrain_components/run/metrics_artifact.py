"""Metrics of a step, which the Kubeflow Pipelines UI shows and compares between runs.

Its API does not have them, so the log has them too.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

LINE = re.compile(r"^metrics: (\{.*\})$", re.M)


def log_numbers(metrics: Any, values: Mapping[str, Any]) -> None:
    """Log the values that are numbers, because the UI accepts no others."""
    numbers = {
        name: value for name, value in values.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }
    for name, value in numbers.items():
        metrics.log_metric(name, value)
    print(f"metrics: {json.dumps(numbers)}", flush=True)


def numbers_in(log: str) -> dict[str, float]:
    """Return the numbers that a step has logged last; none if it has logged none."""
    lines = LINE.findall(log)
    numbers: dict[str, float] = json.loads(lines[-1]) if lines else {}
    return numbers
