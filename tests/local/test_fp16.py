"""Trainings in fp16 learn as in fp32, though their gradients would vanish or overflow without a scaled loss."""

from pathlib import Path

import pytest

from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.metrics_log import read_metrics
from kubetrain_trainer.settings.config import TrainConfig
from support.process_groups import start_python
from support.tiers import ONE_IN_CI
from support.training import copy_killed_at, newest, parameters

TASKS = {
    "pytorch": """
import torch
from torch import nn
from kubetrain_trainer import Task

class Points:
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.sin(torch.arange(1.0, 5.0) * (index + 1)), torch.sin(torch.tensor(index + 1.0))

def build(config, data_dir):
    def loss(outputs, targets):
        return config.model_args["factor"] * (outputs[:, 0] - targets) ** 2
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return Task(model=model, data=lambda split: Points(), loss=loss)
""",
    "tensorflow": """
import keras
import tensorflow as tf
from kubetrain_trainer import KerasTask

class Points:
    def __len__(self):
        return 64
    def load(self, index):
        number = tf.cast(index, tf.float32)
        return tf.sin(tf.range(1.0, 5.0) * (number + 1)), tf.sin(number + 1)

def build(config, data_dir):
    def loss(outputs, targets):
        return config.model_args["factor"] * (outputs[:, 0] - targets) ** 2
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    return KerasTask(model=model, data=lambda split: Points(), loss=loss)
""",
}
VANISHING, OVERFLOWING = 1e-7, 100.0
STEPS = 24
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=ONE_IN_CI)
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(framework: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(framework)
    (folder / "points.py").write_text(TASKS[framework])
    return folder


def train(framework: str, folder: Path, name: str, precision: str, factor: float) -> str:
    config = TrainConfig(
        model="points:build",
        model_args={"factor": factor},
        precision=precision,
        metric="loss",
        epochs=3,
        batch_size=8,
        schedule="constant",
        warmup_epochs=0,
        lr_scaling="none",
        learning_rate=0.05 / factor,
        weight_decay=0,
        clip_norm=0,
        checkpoint_every=12,
        log_every=1,
        metrics_port=0,
        loader_workers=0 if framework == "pytorch" else -1,
    )
    module, output = f"{package_of(framework)}.train", folder / name
    flags = ("--data-dir", folder, "--output-dir", output, *config.to_flags())
    process = start_python("-m", module, *flags, cwd=folder)
    log, _ = process.communicate(timeout=120)
    assert process.returncode == 0, log
    return str(log)


def losses(folder: Path, name: str) -> list[float]:
    return [row["loss"] for row in read_metrics(TrainingOutput(folder / name).metrics) if "loss" in row]


def test_gradients_that_would_vanish_train_as_in_fp32(framework: str, folder: Path) -> None:
    for precision in ("fp32", "fp16"):
        log = train(framework, folder, f"vanishing-{precision}", precision, VANISHING)
        assert f", {precision}, " in log
        assert "skipped a step" not in log
    expected = losses(folder, "vanishing-fp32")
    assert len(expected) == STEPS
    assert losses(folder, "vanishing-fp16") == pytest.approx(expected, rel=0.02)
    assert sum(expected[-8:]) < 0.7 * sum(expected[:8])


def test_steps_that_overflow_are_skipped_and_a_killed_training_ends_like_one_that_was_not(
    framework: str, folder: Path
) -> None:
    log = train(framework, folder, "overflowing", "fp16", OVERFLOWING)
    skipped = log.count("skipped a step: the gradient is ")
    assert 2 < skipped < 10, log
    assert f"({skipped} skipped so far); the loss is now scaled by {2 ** (16 - skipped)}" in log
    learned = losses(folder, "overflowing")[skipped:]
    assert sum(learned[-8:]) < sum(learned[:8])
    last = newest(folder / "overflowing")
    assert last.manifest["loss_scale"] == {"factor": 2 ** (16 - skipped), "steps": STEPS - skipped}

    copy_killed_at(STEPS // 2, folder / "overflowing", folder / "killed")
    assert "skipped a step" not in train(framework, folder, "killed", "fp16", OVERFLOWING)
    resumed, whole = parameters(newest(folder / "killed"), last)
    assert resumed.keys() == whole.keys()
    assert all((resumed[name] == whole[name]).all() for name in whole)
