"""Trainings for tests: started as jobs, their parameters read back from the checkpoints."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from kubetrain_trainer.checkpoint_layout import Checkpoint, complete_checkpoints
from kubetrain_trainer.training_output import TrainingOutput


def newest(output: Path) -> Checkpoint:
    return complete_checkpoints(TrainingOutput(output).checkpoints)[-1]


def parameters(*checkpoints: Checkpoint) -> Sequence[Mapping[str, np.ndarray]]:
    """Every number of the saved states: model, optimizer, and what else would be resumed."""
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


READ_TENSORFLOW = """
import sys
import numpy as np
import tensorflow as tf
from pathlib import Path
for number, path in enumerate(sys.argv[2:]):
    values = {}
    for file in Path(path).glob("*.index"):
        reader = tf.train.load_checkpoint(file.with_suffix(""))
        names = [name for name in reader.get_variable_to_shape_map() if name.endswith("VARIABLE_VALUE")]
        part = "" if file.stem == "state" else f"{file.stem}/"
        values |= {part + name: reader.get_tensor(name) for name in names}
    np.savez(f"{sys.argv[1]}/{number}.npz", **values)
"""


def tensorflow_parameters(*paths: Path) -> list[dict[str, np.ndarray]]:
    """In a process of its own: torch, imported after TensorFlow, crashes."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", READ_TENSORFLOW, folder, *paths], check=True, capture_output=True)
        return [dict(np.load(Path(folder, f"{number}.npz"))) for number in range(len(paths))]


def largest_difference(first: Checkpoint, second: Checkpoint) -> float:
    one, other = parameters(first, second)
    assert one.keys() == other.keys()
    assert len(one) > 10
    return max(float(np.abs(one[name].astype(float) - other[name].astype(float)).max()) for name in one)
