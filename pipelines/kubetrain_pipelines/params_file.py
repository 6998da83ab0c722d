"""--params: a run's parameters in a JSON file, as the compiled pipeline takes them or as single settings."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.placement import Placement
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings import Settings, as_text

OBJECTS: dict[str, type[Settings]] = {each.PARAMETER: each for each in (TrainConfig, Placement, Storage)}
"""The parameters of a compiled pipeline that hold settings."""


def read_params(path: Path | None) -> dict[str, Any]:
    """
    Raises:
        InvalidSetting: where the file holds no JSON object.
    """
    if path is None:
        return {}
    try:
        return _json_object(f"--params {path}", path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"--params {path} cannot be read ({error}): name a file with a JSON object") from error


def single_settings(path: Path | None, pairs: Iterable[str]) -> list[str]:
    """Each as NAME=VALUE, also those that stand together in an object; what stands later counts for more.

    Raises:
        InvalidSetting: where an object is none.
    """
    said = [f"{name}={as_text(value)}" for name, value in read_params(path).items()]
    return [single for pair in [*said, *pairs] for single in _opened(pair)]


def _opened(pair: str) -> list[str]:
    name, separator, text = pair.partition("=")
    if name not in OBJECTS or not separator:
        return [pair]
    return [f"{inner}={as_text(value)}" for inner, value in _json_object(name, text).items()]


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidSetting(f'{name} is no JSON ({error}): write {{"name": value, …}}') from error
    if not isinstance(value, dict):
        raise InvalidSetting(f'{name} is no JSON object: write {{"name": value, …}}')
    return value
