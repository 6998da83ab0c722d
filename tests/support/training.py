"""What trainings of tests need: the parameters in their checkpoints, and a fake group of processes."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kubetrain_trainer.output.checkpoint_layout import Checkpoint, complete_checkpoints
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.process_group import Decision, ProcessGroup
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.settings.config import TrainConfig

TRAIN_AND_EVALUATE = """
import json, os, sys
from kubetrain_trainer.output.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.processes.entry_point import training_arguments
from kubetrain_trainer.PACKAGE.evaluate import evaluate
from kubetrain_trainer.PACKAGE.train import train

CheckpointWriter.is_free = lambda writer, step: writer.wait() is None  # skip no checkpoint
folder, ports = sys.argv[1], iter(os.environ["PORTS"].split())
for name, flags in json.loads(os.environ["TRAININGS"]).items():
    os.environ["MASTER_PORT"] = next(ports)
    sys.argv[1:] = ["--data-dir", folder, "--output-dir", f"{folder}/{name}", *flags]
    arguments = training_arguments("")
    train(arguments)
    if os.environ["RANK"] == os.environ["EVALUATES"]:
        evaluate(arguments)
"""
"""Trains with the flags that TRAININGS has by name, one after the other. The process of rank EVALUATES evaluates."""


def newest(output: Path) -> Checkpoint:
    return complete_checkpoints(TrainingOutput(output).checkpoints)[-1]


def copy_killed_at(step: int, finished: Path, copy: Path) -> None:
    """Copy the output of a training as it would be if the training had been killed after this step."""
    shutil.copytree(finished, copy)
    (copy / "result.json").unlink()
    for checkpoint in complete_checkpoints(TrainingOutput(copy).checkpoints):
        if checkpoint.step > step:
            shutil.rmtree(checkpoint.path)


def parameters(*checkpoints: Checkpoint) -> Sequence[Mapping[str, np.ndarray]]:
    """Return every number of the saved states: model, optimizer and averages."""
    if checkpoints[0].manifest["framework"] == "pytorch":
        return [pytorch_parameters(checkpoint.path) for checkpoint in checkpoints]
    return tensorflow_parameters(*(checkpoint.path for checkpoint in checkpoints))


def pytorch_parameters(path: Path) -> dict[str, np.ndarray]:
    import torch

    state = torch.load(path / "state.pt", weights_only=True)
    momenta = {
        f"optimizer/{index}/{name}": value
        for index, slots in state.pop("optimizer")["state"].items()
        for name, value in slots.items()
    }
    weights = {f"{part}/{name}": value for part, values in state.items() for name, value in values.items()}
    return {name: value.numpy() for name, value in {**weights, **momenta}.items() if isinstance(value, torch.Tensor)}


def state_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return all that PyTorch's trainer has saved."""
    import torch

    state: dict[str, Any] = torch.load(checkpoint.path / "state.pt", weights_only=True)
    return state


def assert_same(one: Any, other: Any, tolerance: float = 0) -> None:
    """Check that two states have the same numbers, and more than a few."""
    import torch
    from torch.utils._pytree import tree_flatten

    (leaves, structure), (others, other_structure) = tree_flatten(one), tree_flatten(other)
    assert structure == other_structure
    assert len(leaves) > 5
    for leaf, twin in zip(leaves, others, strict=True):
        if isinstance(leaf, torch.Tensor):
            torch.testing.assert_close(leaf, twin, atol=tolerance, rtol=0)
        else:
            assert leaf == twin


def tensorflow_parameters(*paths: Path) -> list[dict[str, np.ndarray]]:
    return [_arrays(path / "state.npz") for path in paths]


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as state:
        return dict(state)


def largest_difference(first: Checkpoint, second: Checkpoint) -> float:
    one, other = parameters(first, second)
    assert one.keys() == other.keys()
    assert len(one) > 10
    return max(float(np.abs(one[name].astype(float) - other[name].astype(float)).max()) for name in one)


class FakeGroup(ProcessGroup):
    """One of two processes; the test defines how their numbers are summed."""

    def __init__(self, rank: int, sum_values: Callable[[list[float]], list[float]], gpu_memory: int = 0) -> None:
        self.role = ProcessRole(rank=rank, world_size=2)
        self._sum_values = sum_values
        self._gpu_memory = gpu_memory

    def describe(self, config: TrainConfig) -> str:
        return "two processes"

    def from_rank_0(self, decide: Callable[[], Decision], *, takes_long: bool = False) -> Decision:
        return decide()

    def sum(self, values: list[float]) -> list[float]:
        return self._sum_values(values)

    def broadcast_statistics(self, model: Any) -> None:
        pass

    def read_numbers(self, numbers: Sequence[Any]) -> list[float]:
        return list(numbers)

    def gpu_memory_peak(self) -> int:
        return self._gpu_memory
