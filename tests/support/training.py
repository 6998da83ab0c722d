"""Trainings for tests: started as jobs, their parameters read back from the checkpoints."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kubetrain_trainer.checkpoint_layout import Checkpoint, complete_checkpoints
from kubetrain_trainer.training_output import TrainingOutput


def newest(output: Path) -> Checkpoint:
    return complete_checkpoints(TrainingOutput(output).checkpoints)[-1]


def parameters(checkpoint: Checkpoint) -> Mapping[str, np.ndarray]:
    """Every number of the saved state: model, optimizer, and what else would be resumed."""
    if checkpoint.manifest["framework"] == "pytorch":
        return pytorch_parameters(checkpoint.path)
    return tensorflow_parameters(checkpoint.path)


def pytorch_parameters(path: Path) -> dict[str, np.ndarray]:
    import torch

    state = torch.load(path / "state.pt", weights_only=True)
    momenta = {
        f"optimizer/{index}/{name}": value
        for index, slots in state["optimizer"]["state"].items()
        for name, value in slots.items()
    }
    tensors = {**{f"model/{name}": value for name, value in state["model"].items()}, **momenta}
    return {name: value.numpy() for name, value in tensors.items() if isinstance(value, torch.Tensor)}


def tensorflow_parameters(path: Path) -> dict[str, np.ndarray]:
    with np.load(path / "state.npz") as state:
        return dict(state)


def largest_difference(first: Checkpoint, second: Checkpoint) -> float:
    one, other = parameters(first), parameters(second)
    assert one.keys() == other.keys()
    assert len(one) > 10
    return max(float(np.abs(one[name].astype(float) - other[name].astype(float)).max()) for name in one)
