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
