"""Trainings that would go wrong silently: each framework trains own tasks in one process, and refuses these."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.output.checkpoint_layout import complete_checkpoints
from kubetrain_trainer.output.training_output import TrainingOutput
from support.process_groups import start_python

TASKS = {
    "pytorch": """
import torch
from torch import nn
from kubetrain_trainer import Task

class Points:
    def __init__(self, split):
        self.trains = split == "train"
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.sin(torch.arange(1.0, 5.0) * (index + 1)), torch.tensor(index if self.trains else -1)

class Endless:
    def __getitem__(self, index):
        return torch.ones(4), torch.tensor(0)

DATA = {"right": Points, "without length": lambda split: Endless(), "nothing": lambda split: None}
SHAPES = {
    "one each": lambda values: values.mean(1),
    "a column": lambda values: values.mean(1, keepdim=True),
    "one for the batch": lambda values: values.mean(),
    "one for each token": lambda values: values,
    "a number": lambda values: float(values.mean()),
}

def build(config, data_dir):
    arguments = config.model_args
    def loss(outputs, targets):
        values = SHAPES[arguments.get("loss", "one each")](outputs.square())
        if arguments.get("nan") == "validation" and targets[0] < 0:
            values = values + float("nan")
        if arguments.get("nan") == "gradient":  # the gradient of sqrt(0)
            values = values + (0 * outputs[targets == 21]).square().sum().sqrt()
        return values
    def steady(outputs, targets):
        return SHAPES[arguments.get("metric", "one each")](torch.ones_like(outputs))
    classes = tuple(arguments.get("classes", ""))
    data = DATA[arguments.get("data", "right")]
    model = nn.Linear(4, 6)
    if outputs := arguments.get("outputs"):
        model = nn.Sequential()
        model.add_module("body", nn.Linear(4, 4))
        model.add_module("head", nn.Linear(4, outputs))
    return Task(model=model, data=data, loss=loss, metrics={"accuracy": steady}, classes=classes)
""",
    "tensorflow": """
import keras
import tensorflow as tf
from kubetrain_trainer import KerasTask

class Points:
    def __init__(self, split):
        self.trains = split == "train"
    def __len__(self):
        return 64
    def load(self, index):
        number = tf.cast(index, tf.float32)
        return tf.sin(tf.range(1.0, 5.0) * (number + 1)), index if self.trains else tf.constant(-1, index.dtype)

def as_for_keras(split):
    return tf.data.Dataset.from_tensor_slices((tf.ones((64, 4)), tf.zeros(64, tf.int64))).batch(8)

DATA = {"right": Points, "without length": as_for_keras, "nothing": lambda split: None}
SHAPES = {
    "one each": lambda values: tf.reduce_mean(values, 1),
    "a column": lambda values: tf.reduce_mean(values, 1, keepdims=True),
    "one for the batch": lambda values: tf.reduce_mean(values),
    "one for each token": lambda values: values,
    "a number": lambda values: 1.0,
}

def build(config, data_dir):
    arguments = config.model_args
    def loss(outputs, targets):
        values = SHAPES[arguments.get("loss", "one each")](tf.square(outputs))
        if arguments.get("nan") == "validation":
            values = tf.where(tf.reduce_any(targets < 0), float("nan"), values)
        if arguments.get("nan") == "gradient":  # the gradient of sqrt(0)
            values += tf.sqrt(tf.reduce_sum(tf.square(0 * tf.boolean_mask(outputs, targets == 21))))
        return values
    def steady(outputs, targets):
        return SHAPES[arguments.get("metric", "one each")](tf.ones_like(outputs))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6)])
    if outputs := arguments.get("outputs"):
        layers = [keras.layers.Dense(4, name="body"), keras.layers.Dense(outputs, name="head")]
        model = keras.Sequential([keras.Input((4,)), *layers])
    classes = tuple(arguments.get("classes", ""))
    data = DATA[arguments.get("data", "right")]
    return KerasTask(model=model, data=data, loss=loss, metrics={"accuracy": steady}, classes=classes)
""",
}
TRAIN = """
import json, sys
from kubetrain_trainer.processes.entry_point import training_arguments
from kubetrain_trainer.PACKAGE.train import train

outcomes = {}
for name, flags in json.loads(sys.argv[1]).items():
    sys.argv[1:] = ["--data-dir", ".", "--output-dir", f"output/{name}", *flags]
    try:
        train(training_arguments(""))
        outcomes[name] = "completed"
    except Exception as error:
        outcomes[name] = f"{type(error).__name__}: {error}"
print("outcomes:", json.dumps(outcomes))
"""
SETTINGS: dict[str, Any] = {
    **{"model": "own:build", "batch_size": 8, "epochs": 1, "checkpoint_every": 2, "log_every": 100, "metrics_port": 0},
    **{"learning_rate": 0.01, "warmup_epochs": 0},
}
TRAININGS: dict[str, dict[str, Any]] = {
    "right": {},
    "right-in-a-column": {"model_args": {"loss": "a column", "metric": "a column"}},
    "mean-loss": {"model_args": {"loss": "one for the batch"}},
    "loss-of-tokens": {"model_args": {"loss": "one for each token"}, "gradient_accumulation": 2},
    "metric-of-tokens": {"model_args": {"metric": "one for each token"}},
    "mean-metric": {"model_args": {"metric": "one for the batch"}},
    "metric-without-shape": {"model_args": {"metric": "a number"}},
    "data-without-length": {"model_args": {"data": "without length"}},
    "data-of-nothing": {"model_args": {"data": "nothing"}},
    "too-few-classes": {"model_args": {"classes": "ab"}},
    "too-many-classes": {"model_args": {"classes": "abcdefg"}},
    "nan-gradient": {"model_args": {"nan": "gradient"}, "clip_norm": 0, "checkpoint_every": 1},
    "nan-validation": {"model_args": {"nan": "validation"}},
    "lost-files": {"dataset_files": 10_000},
    "nothing-left-of-epochs": {"resume_from": "right", "learning_rate": 0.1},
    "nothing-left-of-steps": {"resume_from": "right", "epochs": 2, "max_steps": 8},
    "corrected": {"output_dir": "output/nothing-left-of-epochs", "resume_from": "right", "epochs": 2},
    "other-epochs": {"output_dir": "output/right", "epochs": 2},
    "goes-on": {"resume_from": "right", "epochs": 2, "weight_decay": 0.25, "optimizer_args": {"momentum": 0.5}},
    "goes-on-without-momentum": {"resume_from": "right", "epochs": 2, "optimizer_args": {"momentum": 0}},
    "goes-on-with-adamw": {"resume_from": "right", "epochs": 2, "optimizer": "adamw"},
    "averaged": {"ema_decay": 0.5},
    "goes-on-without-averages": {"resume_from": "averaged", "epochs": 2},
    "five-outputs": {"model_args": {"outputs": 5}},
    "frozen-head": {"model_args": {"outputs": 6}, "initial_weights": "five-outputs", "freeze": "head"},
    "frozen-body": {"model_args": {"outputs": 6}, "initial_weights": "five-outputs", "freeze": "body"},
    "adamw": {"optimizer": "adamw"},
    "goes-on-with-sgd": {"resume_from": "adamw", "epochs": 2},
    "adamw-goes-on": {"resume_from": "adamw", "epochs": 2, "optimizer": "adamw", "weight_decay": 0.25},
}


@pytest.fixture(scope="module", params=["pytorch", pytest.param("tensorflow", marks=pytest.mark.slow)])
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(framework: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(framework)
    (folder / "own.py").write_text(TASKS[framework])
    (folder / "train.py").write_text(TRAIN.replace("PACKAGE", package_of(framework).rpartition(".")[2]))
    return folder


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> dict[str, str]:
    """Return how each training ended."""
    trainings = {name: _flags({**SETTINGS, **settings}) for name, settings in TRAININGS.items()}
    process = start_python("train.py", json.dumps(trainings), cwd=folder)
    log, _ = process.communicate(timeout=300)
    assert process.returncode == 0, log
    (folder / "log").write_text(log)
    outcomes: dict[str, str] = json.loads(log.rpartition("outcomes: ")[2])
    return outcomes


def _flags(settings: dict[str, Any]) -> list[str]:
    return [
        part
        for name, value in settings.items()
        for part in (f"--{name.replace('_', '-')}", value if isinstance(value, str) else json.dumps(value))
    ]


def saved_steps(folder: Path, name: str) -> list[int]:
    return [each.step for each in complete_checkpoints(TrainingOutput(folder / "output" / name).checkpoints)]


@pytest.mark.parametrize("name", ["right", "right-in-a-column"])
def test_a_loss_with_one_value_for_each_sample_trains(name: str, outcomes: dict[str, str], folder: Path) -> None:
    assert outcomes[name] == "completed"
    assert saved_steps(folder, name)[-1] == 8


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("mean-loss", r"training loss of a batch of 8 samples has shape \(\)"),
        ("loss-of-tokens", r"training loss of a batch of 4 samples has shape \(4, 6\)"),
        ("metric-of-tokens", r"validation accuracy of a batch of 8 samples has shape \(8, 6\)"),
        ("mean-metric", r"validation accuracy of a batch of 8 samples has shape \(\)"),
        ("metric-without-shape", r"validation accuracy of a batch of 8 samples has shape \(\)"),
    ],
)
def test_a_wrong_shape_is_refused_with_the_remedy(
    name: str, refused: str, outcomes: dict[str, str], folder: Path
) -> None:
    assert re.search(refused, outcomes[name]), outcomes[name]
    assert 'reduction="none"' in outcomes[name]
    assert ".mean(1)" in outcomes[name]
    assert saved_steps(folder, name) == []


def test_data_without_indices_is_refused_with_what_it_must_be(framework: str, outcomes: dict[str, str]) -> None:
    kind, way = {"pytorch": ("Endless", "[index]"), "tensorflow": ("tf.data.Dataset", "load(index)")}[framework]
    for name, returned in (("data-without-length", kind), ("data-of-nothing", "NoneType")):
        assert outcomes[name].startswith(f"KubetrainError: data returned a {returned}"), outcomes[name]
        assert f"return an object with len() and {way}" in outcomes[name]


@pytest.mark.parametrize(("name", "classes"), [("too-few-classes", 2), ("too-many-classes", 7)])
def test_another_number_of_classes_than_of_outputs_is_refused_at_the_first_validation(
    name: str, classes: int, outcomes: dict[str, str], folder: Path
) -> None:
    assert f"outputs of a batch have shape (8, 6), but the Task names {classes} classes" in outcomes[name]
    assert saved_steps(folder, name) == []


def test_a_last_layer_that_is_frozen_at_random_is_named(framework: str, outcomes: dict[str, str], folder: Path) -> None:
    assert (outcomes["frozen-head"], outcomes["frozen-body"]) == ("completed", "completed")
    named = {"pytorch": "head.weight, head.bias", "tensorflow": "head"}[framework]
    log = (folder / "log").read_text()
    assert f"freeze keeps the random values of {named}, as model.start has none that fit" in log
    assert log.count("freeze keeps") == 1


def test_a_gradient_of_nan_is_seen_without_clipping_before_anything_is_saved(
    outcomes: dict[str, str], folder: Path
) -> None:
    assert "NotFinite: the gradient is nan at step" in outcomes["nan-gradient"]
    step = int(outcomes["nan-gradient"].partition("at step ")[2].partition(",")[0])
    assert step > 1
    assert max(saved_steps(folder, "nan-gradient")) < step


def test_a_validation_loss_of_nan_ends_the_training_and_nothing_is_saved(
    outcomes: dict[str, str], folder: Path
) -> None:
    assert "NotFinite: the validation loss is nan after step 2" in outcomes["nan-validation"]
    assert saved_steps(folder, "nan-validation") == []


def test_a_dataset_version_that_lost_files_is_refused(outcomes: dict[str, str], folder: Path) -> None:
    assert "files, but the dataset version was published with 10000" in outcomes["lost-files"]
    assert not (folder / "output" / "lost-files").exists()


def test_a_run_that_resumes_from_a_finished_one_is_refused(outcomes: dict[str, str]) -> None:
    assert "the run 'right' has already trained 1 epochs (8 steps)" in outcomes["nothing-left-of-epochs"]
    assert "raise train.epochs above 1" in outcomes["nothing-left-of-epochs"]
    assert "raise train.max_steps above 8" in outcomes["nothing-left-of-steps"]


def test_only_a_run_that_has_not_trained_can_be_corrected(outcomes: dict[str, str], folder: Path) -> None:
    assert outcomes["corrected"] == "completed"
    assert saved_steps(folder, "nothing-left-of-epochs")[-1] == 16
    assert "holds the output of another training (different: train.epochs)" in outcomes["other-epochs"]


def test_a_resumed_run_trains_with_its_own_hyperparameters(
    framework: str, outcomes: dict[str, str], folder: Path
) -> None:
    assert outcomes["goes-on"] == outcomes["adamw-goes-on"] == "completed"
    if framework == "pytorch":  # Keras does not save them: the optimizer has those that it was made with
        sgd, adamw = hyperparameters(folder, "goes-on"), hyperparameters(folder, "adamw-goes-on")
        assert (sgd["weight_decay"], sgd["momentum"]) == (0.25, 0.5)
        assert adamw["weight_decay"] == 0.25
        assert hyperparameters(folder, "right")["momentum"] == 0.9


def test_a_run_without_averages_resumes_from_one_that_has_them(outcomes: dict[str, str], folder: Path) -> None:
    assert outcomes["averaged"] == outcomes["goes-on-without-averages"] == "completed"
    assert saved_steps(folder, "goes-on-without-averages")[-1] == 16


def test_a_state_of_another_optimizer_does_not_fit(framework: str, outcomes: dict[str, str]) -> None:
    for name in ("goes-on-with-adamw", "goes-on-with-sgd"):
        assert "does not fit this run's" in outcomes[name]
    if framework == "pytorch":
        assert outcomes["goes-on-without-momentum"] == "completed"


def hyperparameters(folder: Path, name: str) -> dict[str, Any]:
    import torch

    newest = complete_checkpoints(TrainingOutput(folder / "output" / name).checkpoints)[-1]
    groups = torch.load(newest.path / "state.pt", weights_only=True)["optimizer"]["param_groups"]
    return dict(groups[0])
