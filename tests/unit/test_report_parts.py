"""The parts of a report that a browser test does not reach."""

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from kubetrain_components.evaluate_model.findings import (
    MAX_CLASSES,
    latest_metrics,
    most_confused,
    roc_columns,
    worst_confusions,
)
from kubetrain_components.evaluate_model.plots import curves
from kubetrain_components.evaluate_model.report import slow_processes, training_report
from kubetrain_trainer.models.evaluation_record import ClassPredictions
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.time_spent import TimeSpent
from kubetrain_trainer.settings.config import TrainConfig


def test_a_metrics_name_is_text_and_never_markup() -> None:
    name = 'top<b>"1" \\1 us$_per_$'
    (picture,) = curves([{"step": 1, f"validation_{name}": 0.5}], name).values()
    root = ElementTree.fromstring(picture)
    assert root.get("aria-label") == f"Validation {name}"
    assert root.get("role") == "img"
    assert root.get("width") is None, "the page says how wide it is"


def test_what_was_not_a_number_is_not_drawn() -> None:
    assert curves([{"step": 1, "loss": None}], "accuracy") == {}
    assert list(curves([{"step": 1, "loss": None}, {"step": 2, "loss": 1.0}], "accuracy")) == ["Loss"]


def test_the_curve_of_the_metric_has_its_name_without_its_direction(tmp_path: Path) -> None:
    output = TrainingOutput(tmp_path / "run")
    output.begin("pytorch", TrainConfig(metric="max:f1"), "")
    output.metrics.write_text('{"step": 1, "validation_f1": 0.5}\n')
    assert 'aria-label="Validation f1"' in training_report(output)


def test_a_report_without_its_launch_shows_the_trainers_own_time(tmp_path: Path) -> None:
    output = TrainingOutput(tmp_path / "run")
    output.begin("pytorch", TrainConfig(), "")
    assert "Time of the training" not in training_report(output)
    clock = iter([40.0, 160.0])
    spent = TimeSpent(output.time_spent, 0, 1000.0, lambda: next(clock))
    spent.book("start")
    spent.book("validation")
    spent.write()
    page = training_report(output)
    assert "Time of the training" in page
    assert "starting the program, until its first step" in page
    assert "2 min 00 s, 75%" in page


@pytest.mark.parametrize(
    ("settings", "classes", "said"),
    [
        ({"model": "resnet18"}, (), "Evaluated: resnet18<"),
        ({"model": "resnet18"}, ("cat", "a<b"), "Evaluated: resnet18, 2 classes<"),
        ({"entry": {"script": "train.py"}}, (), "Evaluated: train.py<"),
        ({"entry": {"command": ["python", "x.py"]}}, (), "Evaluated: python<"),
    ],
)
def test_the_headline_says_what_was_trained(
    settings: dict[str, Any], classes: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    output = TrainingOutput(tmp_path / "run")
    output.begin("pytorch", TrainConfig(**settings), "")
    if classes:
        checkpoint = output.write_checkpoint(TrainingProgress(step=1), {}, lambda path: (path / "s").touch())
        evaluation = {"split": "test", "samples": 2, "metrics": {"loss": 0.5}, "classes": classes}
        output.write_evaluation({**evaluation, "manifest_sha256": checkpoint.manifest_sha256})
    page = training_report(output)
    assert f"<strong>{said}/strong>" in page
    assert ("<p>cat, a&lt;b</p>" in page) == bool(classes)


def test_a_slow_process_is_a_fact_with_its_largest_delay_and_its_steps() -> None:
    slow = {"rank": 3, "node": "gpu-7", "part": "data"}
    delays = {1_000: 0.25, 1_010: 0.5, 1_020: 0.3}
    rows = [{"step": step, "stragglers": [{**slow, "delay_share": share}]} for step, share in delays.items()]
    assert list(slow_processes([{"step": 990}, *rows, {"step": 1_030}])) == [
        (
            "Slow process",
            "rank 3 on node gpu-7, steps 1,000 to 1,020: the others waited up to 50% of a step for its data",
        )
    ]


def test_a_cell_of_a_cut_matrix_has_its_share_of_all_samples_of_the_class(tmp_path: Path) -> None:
    """Of 100 classes, 50 are shown; most errors of the first one are not among them."""
    matrix = [[0] * 100 for _ in range(100)]
    for shown in range(1, 50):
        matrix[shown][shown % 49 + 1] = 10
    matrix[0][1] = 3
    matrix[0][50:95] = [2] * 45
    output = TrainingOutput(tmp_path / "run")
    output.begin("pytorch", TrainConfig(), "")
    names = [f"class-{number}" for number in range(100)]
    evaluation = {"split": "test", "samples": 583, "metrics": {"accuracy": 0.0, "loss": 1.5e-7}, "misclassified": []}
    output.write_evaluation({**evaluation, "classes": names, "confusion": matrix, "manifest_sha256": "a"})
    page = training_report(output)
    assert re.findall(r"--share:(\d+)[^>]*>3</td>", page) == ["3"]
    assert "<b>1.5e-07</b>" in page


def test_samples_without_an_output_are_in_the_report(tmp_path: Path) -> None:
    output = TrainingOutput(tmp_path / "run")
    output.begin("pytorch", TrainConfig(), "")
    predicted = ClassPredictions(["cat", "dog"])
    predicted.add([0, 0, 1], [0, 1, 0], [0.9, math.nan, 0.8])
    evaluation = {"split": "test", "samples": 3, "metrics": {"loss": math.nan}, "manifest_sha256": "a"}
    output.write_evaluation(evaluation | predicted.record(lambda index: f"data:{index}"))
    page = training_report(output)
    assert (
        "for 1 of 3 test samples, the output is not a number, and there is no prediction: the first is sample 1" in page
    )
    assert re.findall(r"data:\d", page) == ["data:2"]


def test_a_matrix_of_many_classes_is_cut_to_those_with_the_most_errors() -> None:
    """The first class has the most samples, but no error."""
    count = MAX_CLASSES + 1
    matrix = [[0] * count for _ in range(count)]
    matrix[0][0] = 1000
    for wrong in range(1, count):
        matrix[wrong][wrong % MAX_CLASSES + 1] = 1
    names, cut = most_confused([f"class-{number}" for number in range(count)], matrix)
    assert names == [f"class-{number}" for number in range(1, count)]
    assert sum(map(sum, cut)) == MAX_CLASSES


def test_correct_predictions_are_no_confusions() -> None:
    matrix = [[9, 1, 0], [0, 9, 3], [0, 0, 9]]
    assert worst_confusions(["a", "b", "c"], matrix) == [("b", "c", 3), ("a", "b", 1)]


def test_an_roc_curve_has_its_columns_in_the_order_of_kubeflow_pipelines() -> None:
    points = [{"threshold": 0.5, "true_positive_rate": 0.8, "false_positive_rate": 0.1}]
    assert roc_columns(points) == ([0.1], [0.8], [0.5])


def test_the_metrics_of_the_latest_model_do_not_replace_those_of_the_new_one() -> None:
    latest = {"version": "20260101T000000Z-r1", "metrics": {"accuracy": 0.9, "loss": None}}
    assert latest_metrics({"metrics": {"accuracy": 0.8}, "latest": latest}) == {
        "latest_accuracy": 0.9,
        "latest_loss": None,
    }
    assert latest_metrics({"metrics": {"accuracy": 0.8}}) == {}
