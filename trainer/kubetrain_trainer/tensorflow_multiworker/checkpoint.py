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
from kubetrain_trainer.tensorflow_multiworker.averaging import Averages
from kubetrain_trainer.training_output import TrainingOutput, misfit

STATE_PREFIX = "state"
AVERAGES_PREFIX = "averages"
EXPORT_FILE = "model.weights.h5"


def save(
    output: TrainingOutput,
    progress: Progress,
    details: Mapping[str, Any],
    model: keras.Model,
    optimizer: keras.Optimizer,
    averages: Averages | None,
    role: ProcessRole,
) -> Checkpoint | None:
    """All processes take part, for a variable may be spread over them; only the chief's files are kept."""

    def write(path: Path) -> None:
        _state(model=model, optimizer=optimizer).write(str(path / STATE_PREFIX))
        if averages is not None:
            _state(model=averages.model).write(str(path / AVERAGES_PREFIX))

    if role.is_chief:
        return output.write_checkpoint(progress, details, write)
    with tempfile.TemporaryDirectory() as unused:
        write(Path(unused))
    return None


def restore(
    checkpoint: Checkpoint,
    config: TrainConfig,
    model: keras.Model,
    optimizer: keras.Optimizer,
    averages: Averages | None,
) -> None:
    """
    Raises:
        KubetrainError: where the checkpoint is of another model or optimizer.
    """
    try:
        _state(model=model, optimizer=optimizer).read(str(checkpoint.path / STATE_PREFIX)).assert_consumed()
        if averages is not None:
            _read_judged_weights(checkpoint, averages.model)
    except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise misfit(checkpoint, config) from error


def export(output: TrainingOutput, checkpoint: Checkpoint, details: Mapping[str, Any], model: keras.Model) -> None:
    """Only the weights that were validated: `model.load_weights("model.weights.h5")` anywhere."""
    verify_files(checkpoint.path, checkpoint.manifest["files"])
    _read_judged_weights(checkpoint, model)
    output.write_export(checkpoint, details, lambda path: model.save_weights(path / EXPORT_FILE))


def load_export(output: TrainingOutput, model: keras.Model) -> dict[str, Any]:
    """Put the exported weights into the model and return the export's manifest."""
    manifest = output.read_export()
    model.load_weights(output.export / EXPORT_FILE)
    return manifest


def _read_judged_weights(checkpoint: Checkpoint, model: keras.Model) -> None:
    """The averages, where they were kept; the training's own weights are what they would begin with."""
    kept = (checkpoint.path / f"{AVERAGES_PREFIX}.index").exists()
    prefix = checkpoint.path / (AVERAGES_PREFIX if kept else STATE_PREFIX)
    _state(model=model).read(str(prefix)).expect_partial()


def _state(**parts: Any) -> tf.train.Checkpoint:
    """Every variable in order: what a checkpoint finds by itself in a Keras model leaves out the state of dropout."""
    return tf.train.Checkpoint(
        **{name: [variable.value for variable in part.variables] for name, part in parts.items()}
    )
