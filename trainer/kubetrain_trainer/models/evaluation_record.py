"""evaluation.json of a classifier: confusion matrix, most confident errors, and the ROC curve if it has two classes."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import count, groupby
from operator import itemgetter
from typing import Any, NamedTuple

from kubetrain_trainer.durable_files import finite
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.processes.entry_point import Arguments
from kubetrain_trainer.termination import report_result

SHOWN_ERRORS = 12
MAX_ROC_POINTS = 200


class Measured(NamedTuple):
    samples: int
    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    """The 95% confidence intervals of those metrics that are means over samples."""


class Answer(NamedTuple):
    """The prediction of a classifier for a sample."""

    sample: int
    truth: int
    prediction: int
    confidence: float


def classification_record(
    classes: Sequence[str], samples: Sequence[Answer], picture: Callable[[int], str]
) -> dict[str, Any]:
    """Return the record. Its confusion matrix has a row per true class and a column per predicted class.

    A sample whose confidence is not a number has no answer: it is counted, and left out of the rest.
    """
    answers = [answer for answer in samples if math.isfinite(answer.confidence)]
    unanswered = [answer for answer in samples if not math.isfinite(answer.confidence)]
    matrix = [[0] * len(classes) for _ in classes]
    for answer in answers:
        matrix[answer.truth][answer.prediction] += 1
    wrong = [answer for answer in answers if answer.truth != answer.prediction]
    wrong.sort(key=lambda answer: -answer.confidence)
    return {
        "classes": list(classes),
        "confusion": matrix,
        **({"unanswered": {"samples": len(unanswered), "first": unanswered[0].sample}} if unanswered else {}),
        **({"roc": _roc_of_two(answers)} if len(classes) == 2 else {}),
        "misclassified": [
            {
                "truth": classes[answer.truth],
                "prediction": classes[answer.prediction],
                "confidence": round(answer.confidence, 4),
                "picture": picture(answer.sample),
            }
            for answer in wrong[:SHOWN_ERRORS]
        ],
    }


def _roc_of_two(answers: Sequence[Answer]) -> list[dict[str, float]]:
    scores = [answer.confidence if answer.prediction == 1 else 1 - answer.confidence for answer in answers]
    return roc_curve([answer.truth for answer in answers], scores)


def roc_curve(truths: Sequence[int], scores: Sequence[float]) -> list[dict[str, float]]:
    """Return the points of the curve, from the highest threshold (no sample is positive) to the lowest (all are).

    Args:
        truths: The true class of each sample, 0 or 1.
        scores: The probability of class 1 for each sample.
    """
    positives = sum(truths)
    negatives = len(truths) - positives
    if not positives or not negatives:
        return []
    points, hits, false_alarms = [_roc_point(1.0, 0.0, 0.0)], 0, 0
    for score, group in groupby(sorted(zip(scores, truths, strict=True), reverse=True), key=itemgetter(0)):
        found = [truth for _, truth in group]
        hits, false_alarms = hits + sum(found), false_alarms + len(found) - sum(found)
        points.append(_roc_point(score, hits / positives, false_alarms / negatives))
    return _thinned(points) if len(points) > MAX_ROC_POINTS else points


def _thinned(points: list[dict[str, float]]) -> list[dict[str, float]]:
    """Leave the first and the last point of each of many even stretches of the curve.

    By rank, the few positives among many samples would share a point.
    """
    along = [(point["true_positive_rate"] + point["false_positive_rate"]) * MAX_ROC_POINTS / 4 for point in points]
    at = [-1, *map(int, along), -1]
    return [point for *stretches, point in zip(at, at[1:], at[2:], points, strict=False) if len({*stretches}) > 1]


def _roc_point(threshold: float, hits: float, false_alarms: float) -> dict[str, float]:
    values = {"threshold": threshold, "true_positive_rate": hits, "false_positive_rate": false_alarms}
    return {name: round(value, 6) for name, value in values.items()}


class ClassPredictions:
    """The predictions of a classifier with their confidences, collected batch by batch."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes = classes
        self._answers: list[Answer] = []

    def add(self, truths: Sequence[Any], predictions: Sequence[int], confidences: Sequence[float]) -> None:
        """
        Args:
            truths: The classes, or lists of one class each, or of the share of each class.

        Raises:
            KubetrainError: if a class has no name.
        """
        indices = [*map(_class_of, truths)]
        self._check_named("target", indices)
        self._check_named("prediction", predictions)
        self._answers += map(Answer, count(len(self._answers)), indices, predictions, confidences)

    def _check_named(self, what: str, indices: Sequence[int]) -> None:
        count = len(self._classes)
        if unnamed := [index for index in indices if not 0 <= index < count]:
            raise KubetrainError(
                f"a {what} is class {unnamed[0]}, but the Task names {_classes(count)}, from 0 to {count - 1}: "
                "name each class of the data in classes, in the order of their numbers"
            )

    def record(self, picture: Callable[[int], str]) -> dict[str, Any]:
        """Return the record of all predictions, or an empty one if the task has no classes."""
        return classification_record(self._classes, self._answers, picture) if self._classes else {}


def check_outputs(classes: Sequence[str], outputs: Any) -> None:
    """Check that the outputs of a batch have a score for each class. It does not wait for a GPU.

    Raises:
        KubetrainError: if they do not.
    """
    shape, count = tuple(getattr(outputs, "shape", ())), len(classes)
    if classes and not hasattr(outputs, "shape"):
        raise KubetrainError(
            f"the outputs of a batch are a {type(outputs).__name__}, but the Task names {_classes(count)}, which needs "
            f"scores of shape (batch, {count}): let the model return them, such as model(**inputs).logits"
        )
    if classes and not (len(shape) == 2 and shape[1] == count):
        raise KubetrainError(
            f"the outputs of a batch have shape {shape}, but the Task names {_classes(count)}, which needs (batch, "
            f"{count}): name each class that the model scores in classes, or change the model's last layer"
        )


def check_targets(classes: Sequence[str], targets: Any) -> None:
    """Check that the targets of a batch say which class each sample has.

    Raises:
        KubetrainError: if they do not.
    """
    shape = tuple(getattr(targets, "shape", ()))
    if classes and not (len(shape) == 1 or (len(shape) == 2 and shape[1] in (1, len(classes)))):
        raise KubetrainError(
            f"the targets of a batch have shape {shape}, but a Task with classes needs (batch,), (batch, 1) or (batch, "
            f"{len(classes)}): change what data returns, or leave out classes"
        )


def _classes(count: int) -> str:
    return "1 class" if count == 1 else f"{count} classes"


def _class_of(truth: Any) -> int:
    if not isinstance(truth, list):
        return int(truth)
    return int(truth[0]) if len(truth) == 1 else truth.index(max(truth))


def write_evaluation(
    arguments: Arguments,
    export: Mapping[str, Any],
    samples: Any,
    measured: Measured,
    classes: ClassPredictions,
    latest: Mapping[str, Any],
) -> None:
    """Write evaluation.json, and report the metrics as the result of this process.

    Args:
        latest: What it says of the latest published model; empty if that was not evaluated.
    """
    evaluation = {
        "split": arguments.config.test_split,
        **measured._asdict(),
        **classes.record(getattr(samples, "picture", lambda index: "")),
        **{name: export[name] for name in ("step", "checkpoint", "manifest_sha256")},
        "dataset_digest": arguments.dataset_digest,
        **latest,
    }
    arguments.output.write_evaluation(evaluation)
    report_result({"status": "completed", "samples": measured.samples, "metrics": finite(measured.metrics)})
