"""Both frameworks train alike: from the same weights and samples, by the default settings."""

from pathlib import Path

import numpy as np
import pytest

from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.reporting.metrics_log import read_metrics
from kubetrain_trainer.settings.config import TrainConfig
from support.process_groups import start_python

SAMPLES, WIDTH, CLASSES = 160, 16, 3
TASKS = {
    "pytorch": """
import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset
from kubetrain_trainer.pytorch_ddp.task import Task, accuracy

def build(config, data_dir):
    arrays = {name: torch.from_numpy(values) for name, values in np.load(data_dir / "arrays.npz").items()}
    model = nn.Sequential(nn.Linear(4, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))
    model.load_state_dict({**model.state_dict(), "0.weight": arrays["first"].T, "0.bias": torch.zeros(WIDTH),
                           "3.weight": arrays["last"].T, "3.bias": torch.zeros(CLASSES)})
    samples = TensorDataset(arrays["points"], arrays["labels"])
    loss = nn.CrossEntropyLoss(reduction="none")
    return Task(model=model, data=lambda split: samples, loss=loss, metrics={"accuracy": accuracy})
""",
    "tensorflow": """
import keras
import numpy as np
import tensorflow as tf
from kubetrain_trainer.tensorflow_multiworker.task import KerasTask, accuracy

class Samples:
    def __init__(self, points, labels):
        self.points, self.labels = tf.constant(points), tf.constant(labels)
    def __len__(self):
        return len(self.points)
    def load(self, index):
        return self.points[index], self.labels[index]

def build(config, data_dir):
    arrays = np.load(data_dir / "arrays.npz")
    normalization = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5)
    layers = [keras.layers.Dense(WIDTH), normalization, keras.layers.Activation("tanh"), keras.layers.Dense(CLASSES)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.layers[0].kernel.assign(arrays["first"])
    model.layers[3].kernel.assign(arrays["last"])
    samples = Samples(arrays["points"], arrays["labels"])
    loss = lambda outputs, labels: keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)
    return KerasTask(model=model, data=lambda split: samples, loss=loss, metrics={"accuracy": accuracy})
""",
}
SETTINGS = {
    "defaults": TrainConfig(),
    "drops": TrainConfig(
        schedule="step", schedule_args={"epochs": 5}, optimizer_args={"nesterov": True}, clip_norm=0, layer_rate=0.8
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(600)  # four trainings
def test_each_step_has_the_same_loss_in_both_frameworks(tmp_path: Path) -> None:
    random, like = np.random.default_rng(3), {"dtype": np.float32}
    points = random.normal(size=(SAMPLES, 4)).astype(**like)
    labels = np.digitize(points[:, 0] * points[:, 1], [-0.3, 0.3])
    first, last = (random.normal(scale=0.4, size=size).astype(**like) for size in ((4, WIDTH), (WIDTH, CLASSES)))
    np.savez(tmp_path / "arrays.npz", points=points, labels=labels, first=first, last=last)
    for name, settings in SETTINGS.items():
        by_pytorch, by_tensorflow = (losses(tmp_path, framework, name, settings) for framework in TASKS)
        assert len(by_pytorch) == 15 * SAMPLES / 32
        assert by_pytorch[-1] < 0.8 * by_pytorch[0]
        np.testing.assert_allclose(by_tensorflow, by_pytorch, rtol=5e-3, err_msg=name)


def losses(folder: Path, framework: str, name: str, settings: TrainConfig) -> list[float]:
    task, output = TASKS[framework].replace("WIDTH", str(WIDTH)).replace("CLASSES", str(CLASSES)), folder / framework
    (folder / f"in_{framework}.py").write_text(task)
    paths = ("--data-dir", folder, "--output-dir", output / name)
    flags = ("--model", f"in_{framework}:build", "--log-every", 1, *settings.to_flags())
    process = start_python("-m", f"{package_of(framework)}.train", *paths, *flags, cwd=folder)
    text, _ = process.communicate(timeout=150)
    assert process.returncode == 0, text
    return [row["loss"] for row in read_metrics(output / name / "metrics.jsonl") if "loss" in row]
