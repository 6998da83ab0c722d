"""The operations that a model computes for a sample, counted without computing any."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from kubetrain_trainer.processes.resources import peak_operations
from kubetrain_trainer.pytorch_ddp.operations import operations_per_sample
from kubetrain_trainer.pytorch_ddp.task import build_task
from kubetrain_trainer.reporting.metrics_log import read_metrics
from kubetrain_trainer.settings.config import TrainConfig


class Pair(nn.Module):
    """Returns a part that needs no gradient too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.Dropout(), nn.Linear(32, 8))

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Any]:
        scores = self.layers(inputs["values"])
        return {"scores": scores, "best": scores.argmax(dim=1)}


class Curious(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.sum() if inputs.sum() > 0 else inputs


def test_those_of_products_are_counted_exactly() -> None:
    count = operations_per_sample(Pair(), {"values": torch.zeros(2, 64)}, 2)
    forward, backward = 2 * (64 * 32 + 32 * 8), 2 * (64 * 32 + 2 * 32 * 8)  # the inputs need no gradient
    assert count == forward + backward


def test_those_of_a_resnet_are_about_three_times_those_of_its_forward_pass() -> None:
    model = torchvision.models.resnet18().to(memory_format=torch.channels_last)
    model.compile()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    count = operations_per_sample(model, torch.zeros(2, 3, 224, 224), 2)
    assert count == pytest.approx(3 * 2 * 1.81e9, rel=0.03)
    torch.testing.assert_close(dict(model.state_dict()), before, msg="the model is as it was")
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_those_of_convolutions_with_groups() -> None:
    depthwise = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ConvTranspose2d(8, 4, 2, 2)
    )
    forward = [2 * 3 * 8 * 100, 2 * 9 * 8 * 100, 2 * 8 * 4 * 4 * 100]
    count = operations_per_sample(depthwise, torch.zeros(2, 3, 10, 10), 2)
    assert count == 3 * sum(forward) - forward[0]  # the inputs need no gradient


class Caching(nn.Module):
    """Keeps a mask from its first call, as models of texts do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.mask: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = torch.ones(4, device=inputs.device)
        return self.layer(inputs) * self.mask


def test_what_a_model_keeps_from_its_first_call_is_left_alone() -> None:
    model = Caching()
    assert operations_per_sample(model, torch.zeros(2, 4), 2) == 2 * 2 * 16
    assert model.mask is None
    assert model(torch.ones(2, 4)).isfinite().all()


def test_a_model_that_looks_at_its_values_has_no_count() -> None:
    assert operations_per_sample(Curious(), torch.ones(2, 3), 2) == 0


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("Tesla T4", 65e12),
        ("NVIDIA T400", 0),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 0),
    ],
)
def test_gpus_by_name(name: str, peak: float) -> None:
    assert peak_operations(name) == peak


IN_TENSORFLOW = """
import json
from kubetrain_trainer.tensorflow_multiworker.model import build_model
from kubetrain_trainer.tensorflow_multiworker.operations import operations_per_sample
import keras
import tensorflow as tf

class Curious(keras.Model):
    def call(self, inputs):
        return inputs if tf.reduce_sum(inputs).numpy() > 0 else 2 * inputs

def of_images(name):
    return operations_per_sample(build_model(name, 224, 1000, {}), tf.zeros([2, 224, 224, 3]), 2)

words = keras.Input([16, 64])
attending = keras.Model(words, keras.layers.Dense(8)(keras.layers.MultiHeadAttention(4, 16)(words, words)))
repeating = keras.Model(words, keras.layers.LSTM(8)(words))
counts = {
    **{name: of_images(f"keras:{name}") for name in ("resnet18", "resnet50", "mobilenetv2", "convnexttiny")},
    **{name: operations_per_sample(model, tf.zeros([2, 16, 64]), 2) for name, model in
       {"attending": attending, "repeating": repeating, "curious": Curious()}.items()},
}
print(json.dumps(counts))
"""


@pytest.mark.slow
def test_tensorflow_counts_as_pytorch_does() -> None:
    program = subprocess.run([sys.executable, "-c", IN_TENSORFLOW], capture_output=True, text=True, check=False)
    assert program.returncode == 0, program.stderr
    counts = json.loads(program.stdout)
    resnet18, resnet50 = torchvision.models.resnet18(), torchvision.models.resnet50()
    images = torch.zeros(2, 3, 224, 224)
    assert counts["resnet18"] == operations_per_sample(resnet18, images, 2)
    # Keras' ResNet-50 reduces images one convolution earlier.
    assert counts["resnet50"] == pytest.approx(operations_per_sample(resnet50, images, 2), rel=0.06)
    assert counts["mobilenetv2"] == pytest.approx(3 * 2 * 0.3e9, rel=0.03), "as its paper says"
    assert counts["convnexttiny"] == pytest.approx(3 * 2 * 4.5e9, rel=0.03), "as its paper says"
    projections, attention, output = 4 * 16 * 64 * 64, 2 * 16 * 16 * 64, 16 * 64 * 8
    inputs_gradient = 3 * 16 * 64 * 64  # which nothing needs
    assert counts["attending"] == 2 * (3 * (projections + attention + output) - inputs_gradient)
    assert (counts["repeating"], counts["curious"]) == (0, 0), "what cannot be known is not guessed"


ON_A_GPU = """
from kubetrain_trainer.tensorflow_multiworker import operations
from kubetrain_trainer.processes.entry_point import run, training_arguments
from kubetrain_trainer.tensorflow_multiworker.train import train
operations.gpu_names = lambda: ["a GPU"]
operations.peak_operations = lambda name: 1e10
run(lambda: train(training_arguments("Train.")))
"""


@pytest.mark.slow
def test_tensorflow_reports_the_use_of_a_gpu(tmp_path: Path) -> None:
    config = TrainConfig(data="synthetic", synthetic={"samples": 64}, epochs=1, metrics_port=0, precision="bf16")
    places = ["--data-dir", ".", "--output-dir", "output"]
    command = [sys.executable, "-c", ON_A_GPU, *places, *config.to_flags()]
    program = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert program.returncode == 0, program.stderr
    row = next(iter(read_metrics(tmp_path / "output" / "metrics.jsonl")))
    task = build_task(config, tmp_path)
    count = operations_per_sample(task.model, task.data("train")[0][0][None], 1)
    assert row["mfu"] == pytest.approx(row["samples_per_second"] * count / 1e10, abs=1e-4)
