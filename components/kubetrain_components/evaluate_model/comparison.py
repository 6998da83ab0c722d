"""The metrics of a model beside those of the latest published one, which the gate compares it with."""

from collections.abc import Iterator, Mapping
from typing import Any

from kubetrain_components.run.gate import Latest, latest_of
from kubetrain_components.run.shown_number import number


def latest_metrics(evaluation: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the metrics of the latest model by names that say so."""
    latest = latest_of(evaluation) or Latest()
    return {f"latest_{name}": value for name, value in latest.metrics.items()}


def describe_comparison(evaluation: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each metric with both values, or one that says why there is nothing to compare with."""
    latest = latest_of(evaluation)
    if latest is None:
        return
    if latest.problem:
        yield f"the latest model, {latest.version}, cannot be compared with: {latest.problem}"
    elif not latest.version:
        yield "no model is published yet to compare with"
    for name, value in sorted(evaluation["metrics"].items()):
        if name in latest.metrics:
            yield f"test {name}: {number(value)}; of the latest model, {latest.version}: {number(latest.metrics[name])}"
