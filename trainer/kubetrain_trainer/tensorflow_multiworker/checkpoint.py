"""A training's state as files: written beside the manifest, read back, exported."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from kubetrain_trainer.checkpoint_layout import Checkpoint, Progress, verify_files
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.process_role import ProcessRole
from kubetrain_trainer.training_output import TrainingOutput, misfit

STATE_PREFIX = "state"
EXPORT_FILE = "model.weights.h5"


def save(
    output: TrainingOutput,
    progress: Progress,
    details: Mapping[str, Any],
    model: keras.Model,
    optimizer: keras.Optimizer,
    role: ProcessRole,
) -> Checkpoint | None:
    """All processes take part, for a variable may be spread over them; only the chief's files are kept."""
    state = _state(model=model, optimizer=optimizer)
    if role.is_chief:
        return output.write_checkpoint(progress, details, lambda path: state.write(str(path / STATE_PREFIX)))
    with tempfile.TemporaryDirectory() as unused:
        state.write(str(Path(unused) / STATE_PREFIX))
    return None


def restore(checkpoint: Checkpoint, config: TrainConfig, model: keras.Model, optimizer: keras.Optimizer) -> None:
    """
    Raises:
        KubetrainError: where the checkpoint is of another model or optimizer.
    """
    try:
        _state(model=model, optimizer=optimizer).read(str(checkpoint.path / STATE_PREFIX)).assert_consumed()
    except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise misfit(checkpoint, config) from error


def export(output: TrainingOutput, checkpoint: Checkpoint, details: Mapping[str, Any], model: keras.Model) -> None:
    """The checkpoint's weights alone: `model.load_weights("model.weights.h5")` anywhere."""
    verify_files(checkpoint.path, checkpoint.manifest["files"])
    _state(model=model).read(str(checkpoint.path / STATE_PREFIX)).expect_partial()
    output.write_export(checkpoint, details, lambda path: model.save_weights(path / EXPORT_FILE))


def load_export(output: TrainingOutput, model: keras.Model) -> dict[str, Any]:
    """Put the exported weights into the model and return the export's manifest."""
    manifest = output.read_export()
    model.load_weights(output.export / EXPORT_FILE)
    return manifest


def _state(**parts: Any) -> tf.train.Checkpoint:
    """Every variable in order: what a checkpoint finds by itself in a Keras model leaves out the state of dropout."""
    return tf.train.Checkpoint(
        **{name: [variable.value for variable in part.variables] for name, part in parts.items()}
    )
