"""Export the weights of a checkpoint as the model, and load them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kubetrain_trainer.checkpoint_layout import Checkpoint
from kubetrain_trainer.pytorch_ddp.checkpoint import evaluated_weights
from kubetrain_trainer.pytorch_ddp.empty_models import fill
from kubetrain_trainer.pytorch_ddp.state_files import read_files, save_state
from kubetrain_trainer.pytorch_ddp.state_parts import joined, size_of
from kubetrain_trainer.pytorch_ddp.weights_files import PYTORCH, find_weights, read_weights, write_safetensors
from kubetrain_trainer.training_output import TrainingOutput
from kubetrain_trainer.unusable_files import other_model_error


def export(output: TrainingOutput, checkpoint: Checkpoint, details: Mapping[str, Any], *, as_safetensors: bool) -> None:
    """Write the weights that were validated. The checkpoint's other tensors stay in its files."""
    weights = [evaluated_weights(state) for state in read_files(checkpoint.path)]
    write = _write_safetensors if as_safetensors else _write_pytorch
    output.write_export(checkpoint, details, lambda folder: write(folder, weights))


def _write_pytorch(folder: Path, weights: list[Any]) -> None:
    """Write a file for `model.load_state_dict(torch.load("model.pt"))` anywhere."""
    save_state(joined(weights), folder / PYTORCH)


def _write_safetensors(folder: Path, weights: list[Any]) -> None:
    sizes = {name: size_of(value) for name, value in weights[0].items()}
    write_safetensors(folder, sizes, lambda name: joined([each[name] for each in weights]))


def load_export(output: TrainingOutput, model: nn.Module, device: torch.device) -> dict[str, Any]:
    """Load the exported weights into the model and return the manifest of the export."""
    manifest = output.read_export()
    load_weights(output.export, manifest["files"], model, device)
    return manifest


def load_weights(folder: Path, files: Iterable[Mapping[str, Any]], model: nn.Module, device: torch.device) -> None:
    """Load exported weights into the model, on this device.

    Raises:
        KubetrainError: if they belong to another model, or the file contains code.
    """
    path = find_weights(folder, files)
    fill(model, device)
    try:
        model.load_state_dict(read_weights(path, device))
    except (RuntimeError, TypeError) as error:
        raise other_model_error(path) from error
