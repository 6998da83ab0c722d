"""Start from weights that were trained before, with another last layer if the classes differ."""

import contextlib
import logging
from pathlib import Path

import h5py
import keras

from kubetrain_trainer.models.initial_weights import misfit
from kubetrain_trainer.output.unusable_files import foreign_error
from kubetrain_trainer.tensorflow_multiworker.layers import layers_of

log = logging.getLogger(__name__)


def load_initial_weights(path: Path, model: keras.Model) -> list[keras.Layer]:
    """Load what fits, and return the layers that start at random.

    Raises:
        InvalidSetting: if more than the last layer differs.
    """
    _check_size(path, model)
    last = [layer for layer in layers_of(model) if layer.weights][-1]
    try:
        try:
            model.load_weights(path)
            new = []
        except ValueError:
            model.load_weights(path, objects_to_skip=[last])
            new = [last]
    except OSError as error:  # not HDF5 but a pickle or a .keras file, which may contain code
        raise foreign_error(path) from error
    except ValueError as error:
        raise misfit(path, " ".join(str(error).split())[:300]) from error
    log.info("the training starts from %s%s", path, f"; new: {last.name}" if new else "")
    return new


def _check_size(path: Path, model: keras.Model) -> None:
    """Check that the file has no more weights than the model, because Keras would leave them out."""
    with contextlib.suppress(OSError), h5py.File(path) as file:  # what is not HDF5 is refused when it is loaded
        names: list[str] = []
        file.visit(names.append)
        stored = [name for name in names if "/vars/" in name and "seed_generator" not in name]
        if len(stored) > len(model.weights):
            raise misfit(path, f"it has {len(stored)} arrays of weights, and the model {len(model.weights)}")
