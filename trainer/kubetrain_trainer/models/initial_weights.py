"""The weights that a training starts from in place of random ones: those of another run, or a file.

<output root>/<run>/export/…    what another run exported
<output root>/…                 a file of weights, or the folder of a published model
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.output.checkpoint_layout import resumable_checkpoints
from kubetrain_trainer.output.manifest import PUBLISHED_DESCRIPTION
from kubetrain_trainer.output.model_folder import listed_file, open_model
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.entry_point import Arguments
from kubetrain_trainer.processes.process_group import ProcessGroup
from kubetrain_trainer.settings.config import TrainConfig

log = logging.getLogger(__name__)


def initial_weights(arguments: Arguments, group: ProcessGroup, file_names: Sequence[str]) -> Path | None:
    """Return the file of weights to start from; None if there is none, or the run resumes."""
    found = group.from_rank_0(partial(_find, arguments.config, arguments.output, file_names), takes_long=True)
    return Path(found) if found else None


def _find(config: TrainConfig, output: TrainingOutput, file_names: Sequence[str]) -> str:
    """Return the file, verified if a run wrote it.

    Raises:
        InvalidSetting: if the setting names none.
    """
    if not config.initial_weights or resumable_checkpoints(output.checkpoints):
        return ""
    place = output.path.parent / config.initial_weights
    if place.is_file():
        return str(place)
    if (place / PUBLISHED_DESCRIPTION).is_file():
        model = open_model(place)
        return _find_in(model.path, file_names, model.description)
    if (place / "export").is_dir():
        return _find_in(place / "export", file_names, TrainingOutput(place).read_export())
    raise InvalidSetting(
        f"model.start: {place} is neither a run with an exported model, nor a published model, nor a file: name one by "
        "its path under the output root"
    )


def _find_in(folder: Path, file_names: Sequence[str], described: Mapping[str, Any]) -> str:
    """
    Raises:
        InvalidSetting: if another framework or custom code wrote the model.
    """
    if found := listed_file(file_names, described["files"]):
        return str(folder / found)
    raise InvalidSetting(
        f"model.start: the model in {folder} is one of {described['framework']} and has no {file_names[0]}, which this "
        "training starts from: name the file of weights itself, or a model that the same framework's trainer has "
        "trained"
    )


def misfit(path: Path, problem: str) -> InvalidSetting:
    return InvalidSetting(
        f"model.start: {path} does not fit this run's model: {problem}. Only the last layer may differ"
    )


def warn_of_frozen(new: Iterable[str]) -> None:
    """
    Args:
        new: Names of what starts at random and is frozen.
    """
    if names := ", ".join(new):
        log.warning(
            "train.freeze keeps the random values of %s, as model.start has none that fit: do not freeze this layer",
            names,
        )
