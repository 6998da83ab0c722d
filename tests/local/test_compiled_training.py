"""Trainings with a compiled model, which compile at their first step and never again."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from kubetrain_trainer.reporting.metrics_log import read_metrics

pytestmark = pytest.mark.slow
COUNTING = """
from functools import partialmethod
from torch import nn
from torch._dynamo.utils import counters
from kubetrain_trainer.processes.entry_point import run, training_arguments
from kubetrain_trainer.pytorch_ddp import train

# What is compiled, and when, is decided before this part, which would take a minute each time.
nn.Module.compile = partialmethod(nn.Module.compile, backend="eager")
take_step = train.take_step

def counted(*arguments):
    is_taken = take_step(*arguments)
    # In one piece, because a thread may print between several.
    print(f"graphs: {counters['stats']['unique_graphs']}\\n", end="", flush=True)
    return is_taken

train.take_step = counted
run(lambda: train.train(training_arguments("Train.")))
"""

GRAPH = """
import runpy
import torch
from torch import nn
from kubetrain_trainer import Task

class Graph(torch.autograd.Function):
    memory = torch.zeros(1, 4)

    @staticmethod
    def forward(context, inputs, weights):
        context.save_for_backward(inputs, weights)
        return inputs @ weights.T

    @staticmethod
    def backward(context, gradient):
        inputs, weights = context.saved_tensors
        Graph.memory.copy_(gradient.T @ inputs)
        return gradient @ weights, Graph.memory.view(1, 4)

class Model(nn.Linear):
    def forward(self, inputs):
        return Graph.apply(inputs, self.weight)

class Data:
    def __init__(self, split):
        pass

    def __len__(self):
        return 48

    def __getitem__(self, index):
        inputs = torch.tensor([1.0, index % 3, index % 5, index % 7])
        return inputs, inputs.sum()

def build(config, data_dir):
    return Task(model=Model(4, 1, bias=False), data=Data, loss=lambda outputs, targets: (outputs[:, 0] - targets) ** 2)

if __name__ == "__main__":
    nn.Module.compile = lambda *arguments, **options: None
    runpy.run_module("kubetrain_trainer.pytorch_ddp.train", run_name="__main__")
"""
"""A training of a model that puts its gradient into the same memory each time, as CUDA graphs do."""


def train(program: list[str], settings: Mapping[str, object], folder: Path, output: Path) -> str:
    """Run the program in the folder, which is also its dataset, and return what it printed."""
    places = {"data-dir": folder, "output-dir": output}
    flags = [part for name, value in {**places, **settings}.items() for part in (f"--{name}", str(value))]
    ended = subprocess.run([sys.executable, *program, *flags], cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize(("accumulated", "mode"), [(1, "default"), (3, "default"), (3, "reduce-overhead")])
def test_nothing_is_compiled_after_the_first_step(accumulated: int, mode: str, tmp_path: Path) -> None:
    """The last batch of each epoch is smaller, and so are its parts; a validation has batches of two sizes."""
    settings = {"data": "synthetic", "synthetic": '{"samples": 71}', "image-size": 8, "batch-size": 16, "epochs": 3}
    settings |= {"compile": mode, "checkpoint-every": 3, "metrics-port": 0, "gradient-accumulation": accumulated}
    printed = train(["-c", COUNTING], settings, tmp_path, tmp_path / "run")
    first, *others = map(int, re.findall(r"graphs: (\d+)", printed))
    assert first >= 1
    assert others == [first] * 14, "three epochs of five steps"


def test_gradients_in_the_same_memory_add_up(tmp_path: Path) -> None:
    (tmp_path / "graph.py").write_text(GRAPH)
    losses = []
    for accumulated in (1, 3):
        settings = {"model": "graph:build", "batch-size": 12, "epochs": 4, "metrics-port": 0, "metric": "loss"}
        settings |= {"learning-rate": 0.01, "compile": "reduce-overhead", "precision": "fp32"}
        settings |= {"gradient-accumulation": accumulated, "lr-scaling": "none", "log-every": 1}
        output = tmp_path / str(accumulated)
        train(["graph.py"], settings, tmp_path, output)
        losses.append([row["loss"] for row in read_metrics(output / "metrics.jsonl") if "loss" in row])
    first, last = losses[0][0], losses[0][-1]
    assert last < first
    assert losses[1] == pytest.approx(losses[0])
