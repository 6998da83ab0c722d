"""evaluation.json for a classifier: the confusion matrix and the most confident errors."""

from collections.abc import Callable, Sequence
from typing import Any

SHOWN_ERRORS = 12


def classification_record(
    classes: Sequence[str],
    truths: Sequence[int],
    predictions: Sequence[int],
    confidences: Sequence[float],
    picture: Callable[[int], str],
) -> dict[str, Any]:
    """The matrix has a row for each true class and a column for each predicted one."""
    matrix = [[0] * len(classes) for _ in classes]
    for truth, prediction in zip(truths, predictions, strict=True):
        matrix[truth][prediction] += 1
    wrong = [index for index, truth in enumerate(truths) if truth != predictions[index]]
    wrong.sort(key=lambda index: -confidences[index])
    return {
        "classes": list(classes),
        "confusion": matrix,
        "misclassified": [
            {
                "truth": classes[truths[index]],
                "prediction": classes[predictions[index]],
                "confidence": round(confidences[index], 4),
                "picture": picture(index),
            }
            for index in wrong[:SHOWN_ERRORS]
        ],
    }


class Answers:
    """What a classifier takes each sample for, and how sure it is."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes = classes
        self._truths: list[int] = []
        self._predictions: list[int] = []
        self._confidences: list[float] = []

    def add(self, truths: Sequence[int], predictions: Sequence[int], confidences: Sequence[float]) -> None:
        self._truths += truths
        self._predictions += predictions
        self._confidences += confidences

    def record(self, picture: Callable[[int], str]) -> dict[str, Any]:
        """Nothing for a task without classes."""
        if not self._classes:
            return {}
        return classification_record(self._classes, self._truths, self._predictions, self._confidences, picture)
