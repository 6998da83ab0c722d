"""The parts of a report that a browser test does not reach."""

from xml.etree import ElementTree

import pytest

from kubetrain_components.evaluate_model.confusion import accuracy_interval
from kubetrain_components.evaluate_model.plots import curves
from kubetrain_components.evaluate_model.report import interval


def test_a_metrics_name_is_text_and_never_markup() -> None:
    name = 'top<b>"1" \\1'
    (picture,) = curves([{"step": 1, f"validation_{name}": 0.5}], name).values()
    root = ElementTree.fromstring(picture)
    assert root.get("aria-label") == f"Validation {name}"
    assert root.get("role") == "img"
    assert root.get("width") is None, "the page says how wide it is"


def test_what_was_not_a_number_is_not_drawn() -> None:
    assert curves([{"step": 1, "loss": None}], "accuracy") == {}
    assert list(curves([{"step": 1, "loss": None}, {"step": 2, "loss": 1.0}], "accuracy")) == ["Loss"]


@pytest.mark.parametrize(
    ("correct", "wrong", "expected"),
    [(90, 10, (0.8256, 0.9448)), (50, 0, (0.9287, 1.0)), (0, 10, (0.0, 0.2775)), (9500, 500, (0.9456, 0.9541))],
)
def test_the_confidence_interval_of_the_accuracy(correct: int, wrong: int, expected: tuple[float, float]) -> None:
    assert accuracy_interval([[correct, wrong], [0, 0]]) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(("accuracy", "is_shown"), [(1.0, True), (0.99, True), (0.5, False), (None, False)])
def test_the_interval_is_shown_beside_the_accuracy_that_it_belongs_to(accuracy: float | None, is_shown: bool) -> None:
    evaluation = {"confusion": [[90, 0], [0, 0]], "metrics": {"accuracy": accuracy}}
    assert bool(interval(evaluation)) == is_shown
