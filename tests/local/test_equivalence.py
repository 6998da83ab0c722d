"""A step is the same no matter how its samples are divided among processes and into parts.

Two real processes are compared with one; the epoch ends unevenly, and only some steps clip their gradients.
"""

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_trainer.loop.schedule import averaging_decay
from kubetrain_trainer.output.checkpoint_layout import Checkpoint, complete_checkpoints
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.metrics_log import read_metrics
from kubetrain_trainer.settings.config import TrainConfig
from support.process_groups import start, tf_config, torchrun_variables
from support.tiers import ONE_IN_CI
from support.training import TRAIN_AND_EVALUATE, copy_killed_at, parameters

SAMPLES = 45
STEPS = 12  # five of eight samples and one of the rest, twice
CLIP_NORM = 0.5
# Without batch normalization, because each process and each part would normalize over its own batch.
TASKS = {
    "pytorch": """
import torch
from torch import nn
from kubetrain_trainer import Task

class Points:
    def __len__(self):
        return 45
    def __getitem__(self, index):
        return torch.sin(torch.arange(1.0, 5.0) * (index + 1)), torch.tensor(float(index))

def build(config, data_dir):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    loss = lambda outputs, targets: (outputs[:, 0] - targets / 45) ** 2
    metrics = {"index": lambda outputs, targets: targets}
    return Task(model=model, data=lambda split: Points(), loss=loss, metrics=metrics)
""",
    "tensorflow": """
import keras
import tensorflow as tf
from kubetrain_trainer import KerasTask

class Points:
    def __len__(self):
        return 45
    def load(self, index):
        number = tf.cast(index, tf.float32)
        return tf.sin(tf.range(1.0, 5.0) * (number + 1)), number

def build(config, data_dir):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    loss = lambda outputs, targets: (outputs[:, 0] - targets / 45) ** 2
    metrics = {"index": lambda outputs, targets: targets}
    return KerasTask(model=model, data=lambda split: Points(), loss=loss, metrics=metrics)
""",
}
SETTINGS = TrainConfig(
    precision="fp32",
    model="points:build",
    metric="loss",
    epochs=2,
    warmup_epochs=0.5,
    base_batch_size=8,
    learning_rate=0.5,
    schedule="constant",
    optimizer_args={"momentum": 0},
    weight_decay=0,
    clip_norm=CLIP_NORM,
    ema_decay=0.5,
    log_every=1,
    checkpoint_every=1,
    keep_checkpoints=STEPS,
)


def start_group(framework: str, folder: Path, world_size: int, trainings: dict[str, dict[str, Any]]) -> list[Any]:
    package = {"pytorch": "pytorch_ddp", "tensorflow": "tensorflow_multiworker"}[framework]
    flags = {
        name: TrainConfig.from_dict({**SETTINGS.to_dict(), **settings}).to_flags()
        for name, settings in trainings.items()
    }
    ports = free_ports(world_size + len(trainings))
    return [
        start(
            TRAIN_AND_EVALUATE.replace("PACKAGE", package),
            folder,
            TRAININGS=json.dumps(flags),
            EVALUATES="0" if world_size == 1 else "",
            TF_CONFIG=tf_config(ports[:world_size], rank),
            **torchrun_variables(ports, rank, world_size),
        )
        for rank in range(world_size)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("framework", ONE_IN_CI)
def test_a_step_is_the_same_however_its_samples_are_divided(framework: str, tmp_path: Path) -> None:
    (tmp_path / "points.py").write_text(TASKS[framework])
    in_two = {
        "two": {"batch_size": 4},
        "two-in-parts": {"batch_size": 4, "gradient_accumulation": 2},
        "two-compiled": {"batch_size": 4, "gradient_accumulation": 2, "compile": "default"},
        "two-of-a-global-batch": {"batch_size": 2, "global_batch_size": 8},
    }
    one_process = start_group(framework, tmp_path, 1, {"one": {"batch_size": 8}})
    run_group([*one_process, *start_group(framework, tmp_path, 2, in_two)])

    one, *others = read_all(*(TrainingOutput(tmp_path / name) for name in ("one", *in_two)))
    for other in others:
        np.testing.assert_allclose(other.losses, one.losses, rtol=1e-5)
        np.testing.assert_allclose(other.validated, one.validated, rtol=1e-5)
        for at_other, at_one in zip(other.states, one.states, strict=True):
            assert at_other.keys() == at_one.keys()
            for name, value in at_one.items():
                np.testing.assert_allclose(at_other[name], value, atol=1e-6, err_msg=name)
    for trained in (one, *others):
        trained.check_clipping()
        trained.check_averages()

        assert trained.mean_indices == [(SAMPLES - 1) / 2] * STEPS, "validation counts each sample once"
    one.check_export()


@pytest.mark.thorough
@pytest.mark.slow
def test_gradients_all_reduced_in_bf16_lead_nearly_to_the_same_weights(tmp_path: Path) -> None:
    (tmp_path / "points.py").write_text(TASKS["pytorch"])
    settings = {"batch_size": 4}
    run_group(
        start_group("pytorch", tmp_path, 2, {"fp32": settings, "bf16": {**settings, "allreduce_precision": "bf16"}})
    )
    full, reduced = read_all(*(TrainingOutput(tmp_path / name) for name in ("fp32", "bf16")))
    np.testing.assert_allclose(reduced.losses, full.losses, rtol=1e-2)
    assert reduced.losses != full.losses


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("framework", TASKS)
def test_with_a_global_batch_size_steps_stay_the_same_when_processes_are_lost_and_added(
    framework: str, tmp_path: Path
) -> None:
    (tmp_path / "points.py").write_text(TASKS[framework])
    settings = {"epochs": 4, "batch_size": 3, "global_batch_size": 14}  # of the third step, three samples are left over
    run_group(start_group(framework, tmp_path, 1, {"one": settings}))
    for before, after, world_size in (("one", "three", 3), ("three", "two", 2)):
        copy_killed_at(7, tmp_path / before, tmp_path / after)
        run_group(start_group(framework, tmp_path, world_size, {after: settings}))

    one, *others = read_all(*(TrainingOutput(tmp_path / name) for name in ("one", "three", "two")))
    for other in others:
        np.testing.assert_allclose(other.losses, one.losses, rtol=1e-5)
        assert other.rates == one.rates
        for name, value in one.states[-1].items():
            np.testing.assert_allclose(other.states[-1][name], value, atol=1e-6, err_msg=name)


def run_group(processes: list[Any]) -> None:
    for process in processes:
        text, _ = process.communicate(timeout=120)
        assert process.returncode == 0, text


def read_all(*outputs: TrainingOutput) -> list["Trained"]:
    checkpoints = [complete_checkpoints(output.checkpoints) for output in outputs]
    states = iter(parameters(*chain(*checkpoints)))  # all together: each call starts TensorFlow
    return [
        Trained(output, saved, [next(states) for _ in saved])
        for output, saved in zip(outputs, checkpoints, strict=True)
    ]


class Trained:
    """The losses, states and metrics of each step of a training."""

    def __init__(
        self, output: TrainingOutput, checkpoints: list[Checkpoint], states: list[Mapping[str, np.ndarray]]
    ) -> None:
        self.output = output
        self.checkpoints = checkpoints
        self.states = states
        steps = [row for row in read_metrics(output.metrics) if "loss" in row]
        assert (
            [row["step"] for row in steps] == [checkpoint.step for checkpoint in checkpoints] == [*range(1, STEPS + 1)]
        )
        self.losses = [row["loss"] for row in steps]
        self.rates = [row["learning_rate"] for row in steps]
        metrics = [checkpoint.manifest["metrics"] for checkpoint in self.checkpoints]
        self.validated = [each["loss"] for each in metrics]
        self.mean_indices = [each["index"] for each in metrics]

    def weights(self, part: str) -> list[np.ndarray]:
        """Return one row per step with all numbers of the model or of the averages."""
        names = sorted(name for name in self.states[0] if name.startswith(f"{part}/"))
        return [np.concatenate([state[name].ravel() for name in names]) for state in self.states]

    def check_clipping(self) -> None:
        """Check the norm of the whole gradient: the change in one step of plain SGD, divided by the learning rate."""
        changes = np.diff(self.weights("model"), axis=0)
        norms = np.linalg.norm(changes, axis=1) / self.rates[1:]
        assert norms.max() == pytest.approx(CLIP_NORM, rel=1e-3)
        clipped = norms > 0.999 * CLIP_NORM
        assert 2 < clipped.sum() < len(norms) - 2, "some are clipped and some are not"

    def check_averages(self) -> None:
        weights, averages = self.weights("model"), self.weights("averages")
        first_step = CLIP_NORM * self.rates[0]
        kept = averaging_decay(SETTINGS, step=1) * first_step
        assert np.linalg.norm(averages[0] - weights[0]) <= 1.001 * kept, "the average starts from the first weights"
        for index in range(1, STEPS):
            keep = averaging_decay(SETTINGS, self.checkpoints[index].step)
            expected = keep * averages[index - 1] + (1 - keep) * weights[index]
            np.testing.assert_allclose(averages[index], expected, atol=1e-6)

    def check_export(self) -> None:
        """Check that the validated weights are exported: not those of the last step but their average."""
        evaluation = self.output.read_evaluation()
        assert evaluation["samples"] == SAMPLES
        assert evaluation["metrics"]["loss"] == pytest.approx(min(self.validated), rel=1e-6)
        assert not np.allclose(self.weights("model")[-1], self.weights("averages")[-1], atol=1e-4)
