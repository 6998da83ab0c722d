"""Save, restore and export the state of a training."""

import pickle  # only for its exception class; nothing is unpickled
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kubetrain_trainer.output import output_store
from kubetrain_trainer.output.checkpoint_layout import Checkpoint, TrainingProgress
from kubetrain_trainer.output.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.output.model_folder import listed_file
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.output.unusable_files import foreign_error, misfit_error, other_model_error, unlisted_error
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.tensorflow_multiworker.optimizer import Averages

STATE_FILE = "state.npz"
EXPORT_FILE = "model.weights.h5"


class Staging:
    """A copy of the state in memory, to be written while the next steps change the original.

    Its memory is reused by each save, because allocating it takes longer than copying.
    """

    def __init__(self, *, is_needed: bool) -> None:
        self._is_needed = is_needed
        self._copies: dict[str, Any] = {}

    def copy(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of each variable's value, by name; empty in processes that do not need it.

        All processes take part, because reading a variable may involve all of them.
        """
        for name, variable in state.items():
            value = tf.convert_to_tensor(variable.value)
            if self._is_needed:
                self._store(name, np.asarray(value))
        return self._copies

    def _store(self, name: str, value: np.ndarray) -> None:
        if name in self._copies:
            np.copyto(self._copies[name], value)
        else:
            self._copies[name] = value.copy()


def save(
    writer: CheckpointWriter,
    staging: Staging,
    progress: TrainingProgress,
    details: Mapping[str, Any],
    model: keras.Model,
    optimizer: keras.Optimizer,
    averages: Averages | None,
    role: ProcessRole,
) -> None:
    """Copy the state, in all processes together, and let rank 0's writer write the copy while the next steps run."""
    writer.wait()  # the previous checkpoint is written from the same memory
    state = staging.copy(_state(model, optimizer, averages))
    if role.is_rank_0:
        writer.start(progress, details, lambda path: np.savez(path / STATE_FILE, **state))


def restore(
    checkpoint: Checkpoint,
    config: TrainConfig,
    model: keras.Model,
    optimizer: keras.Optimizer,
    averages: Averages | None,
) -> None:
    """Load the checkpoint.

    Raises:
        KubetrainError: if the checkpoint belongs to another model or optimizer.
    """
    output_store.fetch(checkpoint.path)
    state, variables = _load(checkpoint.path / STATE_FILE), _state(model, optimizer, averages)
    state = _add_averages(state) if averages else _drop_averages(state)
    shapes, saved = ({name: tensor.shape for name, tensor in found.items()} for found in (variables, state))
    if shapes != saved:
        raise misfit_error(checkpoint, config)
    _assign(variables, state)


def export(output: TrainingOutput, checkpoint: Checkpoint, details: Mapping[str, Any], model: keras.Model) -> None:
    """Write the weights that were validated; `model.load_weights("model.weights.h5")` loads them anywhere."""
    _assign(_variables("averages", model), _add_averages(_load(checkpoint.path / STATE_FILE)))
    output.write_export(checkpoint, details, lambda path: model.save_weights(path / EXPORT_FILE))


def load_export(output: TrainingOutput, model: keras.Model) -> dict[str, Any]:
    """Load the exported weights into the model and return the manifest of the export."""
    manifest = output.read_export()
    load_weights(output.export, manifest["files"], model)
    return manifest


def load_weights(folder: Path, files: Iterable[Mapping[str, Any]], model: keras.Model) -> None:
    """Load exported weights into the model.

    Raises:
        KubetrainError: if they belong to another model, or the file may contain code.
    """
    if not listed_file([EXPORT_FILE], files):
        raise unlisted_error(folder)
    path = folder / EXPORT_FILE
    try:
        model.load_weights(path)
    except OSError as error:  # not HDF5 but a pickle or a .keras file, which may contain code
        raise foreign_error(path) from error
    except ValueError as error:
        names_other_files = "Not allowed: H5 file" in str(error)  # by a link, which Keras does not follow
        raise (foreign_error if names_other_files else other_model_error)(path) from error


def _state(model: keras.Model, optimizer: keras.Optimizer, averages: Averages | None) -> dict[str, Any]:
    state = _variables("model", model) | _variables("optimizer", optimizer)
    return state | (_variables("averages", averages.model) if averages else {})


def _add_averages(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Add the trained weights as the averages if there are none, because new averages start from the weights."""
    weights = {name: values for name, values in state.items() if name.startswith("model/")}
    return {name.replace("model/", "averages/", 1): values for name, values in weights.items()} | dict(state)


def _drop_averages(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values for name, values in state.items() if not name.startswith("averages/")}


def _variables(part: str, owner: keras.Model | keras.Optimizer) -> dict[str, Any]:
    """Return every variable by position, because names vary. `owner.weights` would omit the state of dropout."""
    return {f"{part}/{position}": variable for position, variable in enumerate(owner.variables)}


def _assign(variables: Mapping[str, Any], state: Mapping[str, np.ndarray]) -> None:
    for name, variable in variables.items():
        values = state[name]
        if values.dtype.kind == "V":  # bfloat16, which NumPy's file format does not support
            values = values.view(tf.as_dtype(variable.dtype).as_numpy_dtype)
        variable.assign(values)


def _load(path: Path) -> dict[str, np.ndarray]:
    try:
        # allow_pickle=False rejects files that contain code.
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (ValueError, TypeError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise foreign_error(path) from error
