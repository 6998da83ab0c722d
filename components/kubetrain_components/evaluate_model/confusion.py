"""The part of a confusion matrix that people can read, and the ROC curve as Kubeflow Pipelines takes it."""

from collections.abc import Mapping, Sequence

MAX_CLASSES = 50


def most_confused(classes: Sequence[str], matrix: Sequence[Sequence[int]]) -> tuple[list[str], list[list[int]]]:
    """The whole matrix up to 50 classes; beyond, the 50 that take part in the most errors, in their old order."""
    errors = [sum(row) + sum(other[index] for other in matrix) - 2 * row[index] for index, row in enumerate(matrix)]
    worst = sorted(range(len(classes)), key=lambda index: -errors[index])[:MAX_CLASSES]
    kept = sorted(worst)
    return [classes[index] for index in kept], [[matrix[row][column] for column in kept] for row in kept]


def roc_columns(points: Sequence[Mapping[str, float]]) -> tuple[list[float], list[float], list[float]]:
    """False positive rates, true positive rates, thresholds."""
    false_alarms, hits, thresholds = (
        [point[name] for point in points] for name in ("false_positive_rate", "true_positive_rate", "threshold")
    )
    return false_alarms, hits, thresholds


def worst_confusions(
    classes: Sequence[str], matrix: Sequence[Sequence[int]], count: int = 5
) -> list[tuple[str, str, int]]:
    """Truth, what it was taken for, and how often; the most frequent first."""
    wrong = [
        (classes[truth], classes[prediction], times)
        for truth, row in enumerate(matrix)
        for prediction, times in enumerate(row)
        if truth != prediction and times
    ]
    return sorted(wrong, key=lambda each: -each[2])[:count]
