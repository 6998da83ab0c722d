"""Save, restore and export the state of a training."""

import pickle  # only for its exception class; nothing is unpickled
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from torch import nn

from kubetrain_trainer.checkpoint_layout import Checkpoint, TrainingProgress
from kubetrain_trainer.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.pytorch_ddp.averaging import Averages
from kubetrain_trainer.pytorch_ddp.group import Group
from kubetrain_trainer.pytorch_ddp.optimizer import Optimizers
from kubetrain_trainer.pytorch_ddp.shared_state import shared_state
from kubetrain_trainer.pytorch_ddp.staging import Staging
from kubetrain_trainer.pytorch_ddp.streams import Position
from kubetrain_trainer.pytorch_ddp.structures import to_device
from kubetrain_trainer.training_output import TrainingOutput, foreign_error, misfit_error, other_model_error

STATE_FILE = "state.pt"
EXPORT_FILE = "model.pt"


def save(
    writer: CheckpointWriter,
    staging: Staging,
    progress: TrainingProgress,
    details: Mapping[str, Any],
    model: nn.Module,
    optimizers: Optimizers,
    averages: Averages | None,
    positions: Sequence[Position] | None,
) -> None:
    """Copy the state, and let the writer write the copy while the next steps run."""
    writer.wait()  # the previous checkpoint is written from the same memory
    parts: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizers.state_dict()}
    if averages is not None:
        parts["averages"] = averages.model.state_dict()
    if positions is not None:
        parts["positions"] = positions
    state = staging.copy(parts, changed_by_forward=model.buffers())

    def write(path: Path) -> None:
        staging.wait()
        _save(state, path / STATE_FILE)

    writer.start(progress, details, write)


def restore(
    checkpoint: Checkpoint,
    config: TrainConfig,
    model: nn.Module,
    optimizers: Optimizers,
    averages: Averages | None,
    group: Group,
    *,
    keep_hyperparameters: bool,
) -> Sequence[Position] | None:
    """Load the checkpoint, which only the chief reads.

    Return where in the training data the processes were that saved it, if they kept that.

    Raises:
        KubetrainError: if the checkpoint belongs to another model or optimizer.
    """
    path = checkpoint.path / STATE_FILE
    state = shared_state(lambda: load_state(path, torch.device("cpu"), mmap=True), group)
    try:
        model.load_state_dict(state["model"])
        optimizers.load_state_dict(state["optimizer"], keep_hyperparameters=keep_hyperparameters)
        if averages is not None:
            averages.model.load_state_dict(_evaluated_weights(state))
    except (RuntimeError, ValueError, KeyError) as error:
        raise misfit_error(checkpoint, config) from error
    positions: Sequence[Position] | None = to_device(state.get("positions"), torch.device("cpu"))
    return positions


def export(output: TrainingOutput, checkpoint: Checkpoint, details: Mapping[str, Any]) -> None:
    """Write the weights that were validated; `model.load_state_dict(torch.load("model.pt"))` loads them anywhere."""
    state = load_state(checkpoint.path / STATE_FILE, torch.device("cpu"), mmap=True)  # the optimizer's part stays there
    weights = _evaluated_weights(state)
    output.write_export(checkpoint, details, lambda path: _save(weights, path / EXPORT_FILE))


def load_export(output: TrainingOutput, model: nn.Module, device: torch.device) -> dict[str, Any]:
    """Load the exported weights into the model and return the manifest of the export."""
    manifest = output.read_export()
    load_weights(output.export / EXPORT_FILE, model, device)
    return manifest


def load_weights(path: Path, model: nn.Module, device: torch.device) -> None:
    """Load exported weights into the model.

    Raises:
        KubetrainError: if they belong to another model, or the file contains code.
    """
    try:
        model.load_state_dict(load_state(path, device))
    except (RuntimeError, TypeError) as error:
        raise other_model_error(path) from error


def _evaluated_weights(state: Mapping[str, Any]) -> Any:
    """Return the averages, or the trained weights if there are none, because new averages start from the weights."""
    return state.get("averages", state["model"])


def _save(state: Any, path: Path) -> None:
    with path.open("wb") as file:  # if given a path, torch.save would hide why it cannot write
        torch.save(state, file)


def load_state(path: Path, device: torch.device, *, mmap: bool = False) -> Any:
    try:
        # weights_only rejects files that contain code. Only archives, which this trainer writes, can be mapped.
        return torch.load(path, map_location=device, weights_only=True, mmap=mmap and is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise foreign_error(path) from error
