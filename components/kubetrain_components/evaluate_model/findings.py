"""The worst confusions of an evaluation, and its comparison with the latest published model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kubetrain_components.run.gate import Latest, latest_of
from kubetrain_components.shown_values import number

MAX_CLASSES, WORST = 50, 5


def most_confused(classes: Sequence[str], matrix: Sequence[Sequence[int]]) -> tuple[list[str], list[list[int]]]:
    """Return the matrix of at most 50 classes: those involved in the most errors, in their original order."""
    errors = [sum(row) + sum(other[index] for other in matrix) - 2 * row[index] for index, row in enumerate(matrix)]
    worst = sorted(range(len(classes)), key=lambda index: -errors[index])[:MAX_CLASSES]
    kept = sorted(worst)
    return [classes[index] for index in kept], [[matrix[row][column] for column in kept] for row in kept]


def roc_columns(points: Sequence[Mapping[str, float]]) -> tuple[list[float], list[float], list[float]]:
    """Return false positive rates, true positive rates and thresholds."""
    false_positive_rates, true_positive_rates, thresholds = (
        [point[name] for point in points] for name in ("false_positive_rate", "true_positive_rate", "threshold")
    )
    return false_positive_rates, true_positive_rates, thresholds


def worst_confusions(classes: Sequence[str], matrix: Sequence[Sequence[int]]) -> list[tuple[str, str, int]]:
    """Return (true class, predicted class, count) of the most frequent errors."""
    wrong = [
        (classes[truth], classes[prediction], times)
        for truth, row in enumerate(matrix)
        for prediction, times in enumerate(row)
        if truth != prediction and times
    ]
    return sorted(wrong, key=lambda each: -each[2])[:WORST]


def describe_unanswered(evaluation: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if the classifier's output for some samples was not a number, which no matrix or curve counts."""
    if found := evaluation.get("unanswered"):
        yield (
            f"for {found['samples']:,} of {evaluation['samples']:,} {evaluation['split']} samples, the output is not a "
            f"number, and there is no prediction: the first is sample {found['first']:,}, counted from 0"
        )


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
