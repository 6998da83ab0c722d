"""Built-in models, custom tasks, image folders and the record of an evaluation."""

import math
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from kubetrain_trainer.data import image_folder, tar_shards
from kubetrain_trainer.data.image_folder import list_classes, list_images
from kubetrain_trainer.data.stored_images import source_of
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.models.evaluation_record import (
    MAX_ROC_POINTS,
    ClassPredictions,
    check_outputs,
    check_targets,
    roc_curve,
)
from kubetrain_trainer.processes.import_path import load_function
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.model_names import check_model, image_size


@pytest.mark.parametrize(
    ("framework", "model"),
    [
        ("pytorch", "digits_cnn"),
        ("pytorch", "torchvision:resnet18"),
        ("pytorch", "torchvision:resnet50"),
        ("tensorflow", "keras:resnet18"),
        ("tensorflow", "keras:resnet50"),
        ("pytorch", "own_task.text:build"),
        ("pytorch", "vision:build"),
        ("tensorflow", "own_keras:build"),
    ],
)
def test_known_models_pass(framework: str, model: str) -> None:
    check_model(framework, model)


@pytest.mark.parametrize(
    ("framework", "model", "message"),
    [
        ("pytorch", "torchvision:resnet5", "did you mean 'torchvision:resnet50'?"),
        ("pytorch", "digit_cnn", "did you mean 'digits_cnn'?"),
        ("tensorflow", "torchvision:resnet50", "is for pytorch, but this run trains with tensorflow"),
        ("pytorch", "keras:resnet50", "use a torchvision: model, or the pipeline train-tensorflow"),
        ("pytorch", "own_task:not a function", "unknown model"),
        ("pytorch", "digit_cnn", "unknown model 'digit_cnn' (a task of your own is package.module:function): did you"),
        ("pytorch", "torchvison:resnet18", "did you mean 'torchvision:resnet18'?"),
        ("tensorflow", "kears:resnet50", "did you mean 'keras:resnet50'?"),
        ("tensorflow", "keras:efficientnetb0", "did you mean 'keras:efficientnetv2b0'?"),
    ],
)
def test_an_unknown_model_is_answered_with_a_suggestion(framework: str, model: str, message: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        check_model(framework, model)
    assert message in str(caught.value)


def test_an_images_size_is_the_models_own_unless_set() -> None:
    assert image_size(TrainConfig()) == 8
    assert image_size(TrainConfig(model="torchvision:resnet50")) == 224
    assert image_size(TrainConfig(image_size=64)) == 64


def test_a_missing_module_or_function_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_module_for_this_test.py").write_text("def build_task(config, data_dir): return config\n")
    monkeypatch.chdir(tmp_path)
    assert load_function("own_module_for_this_test:build_task")(3, None) == 3
    with pytest.raises(InvalidSetting, match="did you mean 'build_task'"):
        load_function("own_module_for_this_test:build_tsk")
    with pytest.raises(InvalidSetting, match="cannot import 'no_such_module'"):
        load_function("no_such_module:build")


def image(root: Path, name: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")


def test_images_are_listed_in_the_same_order_everywhere(tmp_path: Path) -> None:
    for name in ("train/b/2.png", "train/a/1.JPG", "train/b/1.png", "train/a/notes.txt", "val/b/9.png"):
        image(tmp_path, name)
    training, validation = list_images(tmp_path, "train"), list_images(tmp_path, "val")
    assert training.classes == validation.classes == list_classes(tmp_path) == ("a", "b")
    assert [Path(path).relative_to(tmp_path).as_posix() for path in training.paths] == [
        "train/a/1.JPG",
        "train/b/1.png",
        "train/b/2.png",
    ]
    assert training.labels.tolist() == [0, 1, 1]
    assert validation.labels.tolist() == [1]


def test_what_is_left_out_is_counted_by_kind(tmp_path: Path) -> None:
    names = ("a/1.png", "a/2.WEBP", "a/3.webp", "a/more/4.png", "a/._1.png", "a/README", ".ipynb_checkpoints/1.png")
    for name in (*names, "b/5.jpg", "6.png"):
        image(tmp_path, f"train/{name}")
    folder = list_images(tmp_path, "train")
    assert [Path(path).name for path in folder.paths] == ["1.png", "5.jpg"]
    assert folder.classes == ("a", "b")
    (note,) = folder.notes
    assert note.startswith(f"{tmp_path}/train: 2 images are read and these are left out: 2 .webp, 1")
    for kind in ("1 .png", "1 folder .ipynb_checkpoints", "1 folder,", "1 hidden file", "1 file without extension"):
        assert kind in note


def test_a_folder_with_images_alone_has_no_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        image(tmp_path, f"train/a/{number}.png")
    assert list_images(tmp_path, "train").notes == ()
    monkeypatch.setattr("kubetrain_trainer.data.image_folder.MAX_FILES", 2)
    (note,) = list_images(tmp_path, "train").notes
    assert "3 images in single files" in note
    assert "kubetrain pack" in note


def test_a_class_without_images_is_refused_in_training_only(tmp_path: Path) -> None:
    for name in ("train/a/1.png", "train/b/1.gif", "train/b/2.gif", "val/a/1.png", "val/b/1.gif"):
        image(tmp_path, name)
    with pytest.raises(KubetrainError, match=r"train/b has no images \(\.png, .*\); it has 2 \.gif: add images"):
        list_images(tmp_path, "train")
    assert list_images(tmp_path, "val").labels.tolist() == [0]


def test_images_outside_of_the_folders_of_classes_are_named(tmp_path: Path) -> None:
    for number in range(3):
        image(tmp_path, f"train/{number}.png")
    says = r"train has no folders of classes; it has 3 \.png: images must be in <split>/<class>/<image>"
    for read in (list_classes, partial(list_images, split="train")):
        with pytest.raises(KubetrainError, match=says):
            read(tmp_path)


def test_a_wrong_folder_is_named_with_the_existing_ones(tmp_path: Path) -> None:
    image(tmp_path, "train/a/1.png")
    image(tmp_path, "test/c/1.png")
    (tmp_path / "val").mkdir()
    with pytest.raises(KubetrainError, match=r"no folder 'valid' \(it has: test, train, val\)"):
        list_images(tmp_path, "valid")
    with pytest.raises(KubetrainError, match="has class 'c' that train/ does not have: add or remove it"):
        list_images(tmp_path, "test")
    with pytest.raises(KubetrainError, match="has no images"):
        list_images(tmp_path, "val")


def test_a_folder_of_many_files_is_named_with_some(tmp_path: Path) -> None:
    for number in range(10, 1020):
        (tmp_path / f"{number}.png").touch()
    (tmp_path / "training").mkdir()
    with pytest.raises(
        KubetrainError, match=r"it has: training, 10\.png, 100\.png, .*, 1,003 more\); images must"
    ) as refused:
        list_images(tmp_path, "train")
    assert len(str(refused.value)) < 300


def test_a_class_of_the_test_images_alone_is_refused_before_the_training(tmp_path: Path) -> None:
    image(tmp_path, "train/a/1.png")
    assert source_of(TrainConfig(), tmp_path) is image_folder, "a training needs no test images"
    image(tmp_path, "held_out/c/1.png")
    with pytest.raises(KubetrainError, match="held_out has class 'c' that train/ does not have: add or remove it"):
        source_of(TrainConfig(test_split="held_out"), tmp_path)
    assert source_of(TrainConfig(test_split="held_out", data="tar_shards"), tmp_path) is tar_shards


def recorded(classes: list[str], *samples: Any) -> dict[str, Any]:
    *samples, picture = samples
    predicted = ClassPredictions(classes)
    predicted.add(*samples)
    return predicted.record(picture)


def test_the_record_of_a_classifier_counts_and_names_its_most_confident_errors() -> None:
    record = recorded(
        ["cat", "dog"], [0, 0, 1, 1, 1], [0, 1, 1, 0, 0], [0.9, 0.6, 0.8, 0.7, 0.65], lambda index: f"picture {index}"
    )
    assert record["confusion"] == [[1, 1], [2, 1]], "a row has the predictions for one true class"
    assert [(each["truth"], each["prediction"], each["picture"]) for each in record["misclassified"]] == [
        ("dog", "cat", "picture 3"),
        ("dog", "cat", "picture 4"),
        ("cat", "dog", "picture 1"),
    ]


def test_a_sample_without_a_number_is_counted_and_in_no_matrix_and_no_curve() -> None:
    truths, predictions, confidences = [0, 1, 0, 1, 0], [0, 1, 0, 0, 0], [0.9, 0.8, math.nan, 0.6, math.inf]
    record = recorded(["cat", "dog"], truths, predictions, confidences, str)
    whole = recorded(["cat", "dog"], [0, 1, 1], [0, 1, 0], [0.9, 0.8, 0.6], lambda index: "3")
    assert record == {**whole, "unanswered": {"samples": 2, "first": 2}}
    assert recorded(["cat", "dog"], [0], [0], [math.nan], str)["roc"] == []


def test_targets_may_be_columns_or_shares_of_classes() -> None:
    predicted = ClassPredictions(["cat", "dog"])
    predicted.add([[1], [0]], [1, 0], [0.9, 0.9])
    predicted.add([[0.0, 1.0], [0.8, 0.2]], [1, 0], [0.9, 0.9])
    assert predicted.record(str)["confusion"] == [[2, 0], [0, 2]]
    for shape in ((8,), (8, 1), (8, 2)):
        check_targets(["cat", "dog"], np.zeros(shape))
    for targets in (np.zeros((8, 3)), np.zeros((8, 2, 2)), {"label": 1}):
        with pytest.raises(KubetrainError, match=r"a Task with classes needs \(batch,\), \(batch, 1\) or \(batch, 2\)"):
            check_targets(["cat", "dog"], targets)
        check_targets([], targets)


def test_classes_without_a_name_are_refused() -> None:
    check_outputs(["cat", "dog"], np.zeros((8, 2)))
    with pytest.raises(KubetrainError, match=r"are a dict, but .* let the model return them"):
        check_outputs(["cat", "dog"], {"logits": np.zeros((8, 2))})
    check_outputs([], np.zeros(8))
    for names, outputs in ((["cat"], np.zeros((8, 2))), (["cat", "dog"], np.zeros((8, 1)))):
        with pytest.raises(KubetrainError, match=r"outputs of a batch have shape \(8, .\), but the Task names . class"):
            check_outputs(names, outputs)
    with pytest.raises(KubetrainError, match="a target is class 1, but the Task names 1 class, from 0 to 0"):
        ClassPredictions(["cat"]).add([0, 1], [0, 0], [0.9, 0.9])
    with pytest.raises(KubetrainError, match="a target is class -1, but the Task names 2 classes, from 0 to 1"):
        ClassPredictions(["cat", "dog"]).add([-1], [0], [0.9])
    with pytest.raises(KubetrainError, match="a prediction is class 2, but the Task names 2 classes"):
        ClassPredictions(["cat", "dog"]).add([0], [2], [0.9])


def test_the_roc_curve_equals_that_of_scikit_learn() -> None:
    from sklearn.metrics import roc_curve as known_roc_curve

    random = Random(3)
    truths = [random.randrange(2) for _ in range(500)]
    scores = [round(0.4 * truth + 0.6 * random.random(), 2) for truth in truths]  # with many ties
    false_alarms, hits, thresholds = known_roc_curve(truths, scores, drop_intermediate=False)
    curve = roc_curve(truths, scores)
    assert [point["false_positive_rate"] for point in curve] == pytest.approx(false_alarms, abs=1e-6)
    assert [point["true_positive_rate"] for point in curve] == pytest.approx(hits, abs=1e-6)
    assert [point["threshold"] for point in curve[1:]] == pytest.approx(thresholds[1:], abs=1e-6)


@pytest.mark.parametrize("positives", [200, 100_000])
def test_a_long_roc_curve_keeps_its_ends_and_its_area(positives: int) -> None:
    from sklearn.metrics import roc_auc_score

    random = Random(3)
    truths = [int(index < positives) for index in range(200_000)]
    scores = [random.gauss(3.3 * truth) for truth in truths]
    curve = roc_curve(truths, scores)
    assert len(curve) <= MAX_ROC_POINTS + 1
    assert (curve[0]["true_positive_rate"], curve[-1]["true_positive_rate"]) == (0, 1)
    area = np.trapezoid(*([each[f"{name}_positive_rate"] for each in curve] for name in ("true", "false")))
    assert area == pytest.approx(roc_auc_score(truths, scores), abs=1e-4)
    assert roc_curve([1, 1], [0.2, 0.8]) == [], "a single class has no curve"


def test_only_a_record_of_two_classes_has_a_roc_curve() -> None:
    record = recorded(["cat", "dog"], [0, 1], [0, 1], [0.9, 0.8], str)
    assert [(each["threshold"], each["true_positive_rate"]) for each in record["roc"]] == [(1, 0), (0.8, 1), (0.1, 1)]
    assert "roc" not in recorded(["a", "b", "c"], [0], [0], [0.9], str)
