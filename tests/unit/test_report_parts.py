"""The parts of a report that a browser test does not reach."""

from xml.etree import ElementTree

from kubetrain_components.evaluate_model.plots import curves


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
