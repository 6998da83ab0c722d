"""The settings of optimizers mean the same in both frameworks."""

import json
import subprocess
import sys

import pytest

PROGRAM = {
    "pytorch": """
import torch
from types import SimpleNamespace
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.pytorch_ddp.optimizer import build_optimizers

def train(**settings):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    for each in model.parameters():
        torch.nn.init.ones_(each)
    task = SimpleNamespace(model=model, optimizer=None, parameter_groups=None)
    optimizers = build_optimizers(TrainConfig(learning_rate=0.1, lr_scaling="none", **settings), task, 64)
    for gradient in GRADIENTS:
        for each in model.parameters():
            each.grad = torch.full_like(each, gradient)
        optimizers.step()
    return [each.detach().flatten()[0].item() for each in model.parameters()]
""",
    "tensorflow": """
import keras
import tensorflow as tf
from types import SimpleNamespace
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.tensorflow_multiworker.layers import layer_rates
from kubetrain_trainer.tensorflow_multiworker.optimizer import build_optimizer
from kubetrain_trainer.tensorflow_multiworker.step import clip_and_decay

def train(**settings):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), keras.layers.LayerNormalization()])
    for each in model.trainable_variables:
        each.assign(tf.ones_like(each))
    task = SimpleNamespace(model=model, optimizer=None)
    config = TrainConfig(learning_rate=0.1, lr_scaling="none", **settings)
    optimizer, _ = build_optimizer(config, task, 64)
    variables = model.trainable_variables
    for gradient in GRADIENTS:
        gradients = [tf.fill(each.shape, gradient) for each in variables]
        _, gradients = clip_and_decay(SimpleNamespace(config=config, task=task), gradients, variables)
        with layer_rates(model, config.layer_rate):
            optimizer.apply_gradients(zip(gradients, variables))
    return [float(tf.reshape(each, [-1])[0]) for each in variables]
""",
}
SETTINGS = {
    "plain": {"optimizer_args": {"momentum": 0.0}, "weight_decay": 0.5},
    "matrices-only": {"optimizer_args": {"momentum": 0.0, "decay_norms": False}, "weight_decay": 0.5},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.5},
    "adamw-matrices-only": {"optimizer": "adamw", "weight_decay": 0.5, "optimizer_args": {"decay_norms": False}},
    "layers": {"optimizer_args": {"momentum": 0.0}, "weight_decay": 0.5, "layer_rate": 0.5},
    "adamw-layers": {
        "optimizer": "adamw",
        "weight_decay": 0.5,
        "layer_rate": 0.5,
        "optimizer_args": {"decay_norms": False},
    },
    "momentum": {"weight_decay": 0.0},
    "nesterov": {"weight_decay": 0.0, "optimizer_args": {"nesterov": True}},
    "moments": {"optimizer": "adamw", "weight_decay": 0.0},
    "betas": {"optimizer": "adamw", "weight_decay": 0.0, "optimizer_args": {"beta1": 0.5, "beta2": 0.6}},
    "epsilon": {"optimizer": "adamw", "weight_decay": 0.0, "optimizer_args": {"epsilon": 0.1}},
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, list[float]]]:
    """The weights after two steps: of a matrix, its bias, and the scale and bias of a normalization."""
    return {framework: run(program) for framework, program in PROGRAM.items()}


def run(program: str) -> dict[str, list[float]]:
    program = f"import json\nGRADIENTS = [0.2, 0.1]\n{program}\nfor name, each in {SETTINGS!r}.items():\n"
    program += "    print(json.dumps([name, train(clip_norm=0, **each)]))\n"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(line) for line in ended.stdout.splitlines())


@pytest.mark.parametrize("name", [each for each in SETTINGS if each != "epsilon"])
def test_both_frameworks_take_the_same_steps(outcomes: dict[str, dict[str, list[float]]], name: str) -> None:
    assert outcomes["pytorch"][name] == pytest.approx(outcomes["tensorflow"][name], abs=1e-5), (
        "as far as their epsilons differ"
    )


@pytest.mark.parametrize("optimizer", ["", "adamw-"])
def test_biases_and_normalization_can_be_spared_weight_decay(
    outcomes: dict[str, dict[str, list[float]]], optimizer: str
) -> None:
    matrix, *others = outcomes["pytorch"][f"{optimizer}matrices-only"]
    assert matrix == pytest.approx(outcomes["pytorch"][optimizer.strip("-") or "plain"][0]), "the matrix is not"
    assert all(each > matrix for each in others)


@pytest.mark.parametrize("framework", PROGRAM)
def test_each_setting_takes_other_steps(outcomes: dict[str, dict[str, list[float]]], framework: str) -> None:
    assert len({tuple(each) for each in outcomes[framework].values()}) == len(SETTINGS)
