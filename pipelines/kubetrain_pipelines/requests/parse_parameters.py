"""`--set` and `--params`: the parameters of a run, parsed the same way by every command."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.secret_values import has_secret, is_secret
from kubetrain_pipelines.definitions.pipeline_parameters import Parameter
from kubetrain_trainer.errors import InvalidSetting, did_you_mean
from kubetrain_trainer.settings.base import Settings, as_text, coerced, parse_value, without_repeats
from kubetrain_trainer.settings.config import TrainConfig

NAMES_OF_SECRETS = {"s3_secret", "secret_env"}
REMARK = (
    "{} looks like a secret, and everyone who sees the run can read it: let the program read a variable, which on a "
    "cluster secret_env sets"
)

OBJECTS: dict[str, type[Settings]] = {kind.PARAMETER: kind for kind in (TrainConfig, Placement, Storage)}
"""The parameters that are JSON objects of settings."""

Values = dict[tuple[str, str], Any]
"""Values by the object that contains the setting and by name; "" for a parameter, which a setting may be too."""


def parse_parameters(
    declared: Iterable[Parameter], pairs: Iterable[str] = (), file: Path | None = None
) -> dict[str, Any]:
    """Return the parameters that are set. Pairs override the file, and the settings of an object add up.

    The last value of a setting wins, whether its own parameter or its object sets it. Only one of the two is returned,
    because the first step of a run refuses parameters that contradict each other.

    Args:
        declared: The parameters that may be set.
        pairs: NAME=VALUE of parameters, or of settings in parameters that are objects.
        file: A JSON object with the same names.

    Raises:
        InvalidSetting: if a pair lacks its "=", a name is unknown, a value is invalid, or a parameter is missing.
    """
    known = {item.name: item for item in declared}
    in_file = _flat(known, read_parameters(file).items() if file else ())
    in_pairs = _flat(known, (_parse_pair(known, pair) for pair in pairs))
    overridden = {name for _, name in in_pairs}
    flat = {key: value for key, value in in_file.items() if key[1] not in overridden} | in_pairs
    values = {name: value for (parent, name), value in flat.items() if not parent}
    for (parent, name), value in flat.items():
        if parent:
            values.setdefault(parent, {})[name] = value
    values |= _reduced_defaults(known, values)
    for parent, kind in _objects(known).items():
        kind.from_dict(_parameters_of(known, parent, values) | values.get(parent, {}))
    _check_complete(known, values)
    return values


def as_pairs(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return values of JSON types, or paths, as `--set` takes them. None stands for the default.

    Raises:
        InvalidSetting: if a value has another type.
    """
    return tuple(f"{name}={_text_of(name, value)}" for name, value in values.items() if value is not None)


def _text_of(name: str, value: Any) -> str:
    try:
        return as_text(os.fspath(value) if isinstance(value, os.PathLike) else value)
    except (TypeError, ValueError):
        raise InvalidSetting(f"{name} must be a value of JSON (text, number, true, list, …), not {value!r}") from None


def read_parameters(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8-sig"), object_pairs_hook=without_repeats)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"--params {file} cannot be read ({error}): pass a file with a JSON object") from error
    except (ValueError, RecursionError) as error:
        raise InvalidSetting(f'--params {file} is not valid JSON ({error}): write {{"name": value, …}}') from error
    if not isinstance(content, dict):
        raise InvalidSetting(f'--params {file} is not a JSON object: write {{"name": value, …}}')
    return content


def _parse_pair(known: Mapping[str, Parameter], pair: str) -> tuple[str, Any]:
    name, separator, text = pair.partition("=")
    if not separator:
        raise InvalidSetting(f"--set takes name=value, not '{pair}'")
    if parent := _parent(known, name):
        return name, OBJECTS[parent].parse(name, text)
    return name, parse_value(name, known[name].type, text)


def _flat(known: Mapping[str, Parameter], items: Iterable[tuple[str, Any]]) -> Values:
    values: Values = {}
    for name, value in items:
        if parent := _parent(known, name):
            values[parent, name] = value
        elif name in _objects(known):
            values["", name] = {}  # an empty object is a value too, and replaces the pipeline's default
            given = coerced(name, known[name].type, value)
            values |= {
                ("" if _has_parameter(known, name, setting) else name, setting): each for setting, each in given.items()
            }
        else:
            values["", name] = coerced(name, known[name].type, value)
    return values


def _has_parameter(known: Mapping[str, Parameter], parent: str, setting: str) -> bool:
    """Return True if the pipeline has a parameter of its own for a setting of this object."""
    kind = {field.name: field.type for field in fields(OBJECTS[parent])}.get(setting)
    return setting in known and known[setting].type == kind


def _parameters_of(known: Mapping[str, Parameter], parent: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the pipeline's own parameters set of an object, which the object's other settings must fit."""
    given = {**{name: each.default for name, each in known.items() if not each.is_required}, **values}
    return {name: value for name, value in given.items() if value and _has_parameter(known, parent, name)}


def _reduced_defaults(known: Mapping[str, Parameter], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the objects that are not set but whose defaults contradict a parameter, without the contradiction."""
    reduced = {}
    for parent in _objects(known).keys() - values.keys():
        default = known[parent].default if isinstance(known[parent].default, dict) else {}
        overridden = {name for name in default if name in values and _has_parameter(known, parent, name)}
        if overridden:
            reduced[parent] = {name: each for name, each in default.items() if name not in overridden}
    return reduced


def _parent(known: Mapping[str, Parameter], name: str) -> str:
    """Return the object that has a setting of this name, or "" if the name is a parameter."""
    settings = {setting: parent for parent, kind in _objects(known).items() for setting in kind.names()}
    if name not in known and name not in settings:
        raise InvalidSetting(f"unknown setting '{name}': {did_you_mean(name, [*known, *settings])}")
    return "" if name in known else settings[name]


def _objects(known: Mapping[str, Parameter]) -> dict[str, type[Settings]]:
    return {name: kind for name, kind in OBJECTS.items() if name in known and known[name].type == dict[str, Any]}


def _check_complete(known: Mapping[str, Parameter], values: Mapping[str, Any]) -> None:
    for name, parameter in known.items():
        if parameter.is_required and name not in values:
            raise InvalidSetting(f"{name} is missing ({parameter.description.rstrip('.')}): set {name}=VALUE")


def secret_warnings(parameters: Mapping[str, Any]) -> list[str]:
    return [REMARK.format(name) for name in _secrets_in(parameters)]


def _secrets_in(values: Mapping[str, Any], place: str = "") -> Iterator[str]:
    for name, value in values.items():
        if name in NAMES_OF_SECRETS:
            continue
        for item in [value] if isinstance(value, Mapping) else value if isinstance(value, list) else []:
            if isinstance(item, Mapping):
                yield from _secrets_in(item, f"{place}{name}.")
        is_text = isinstance(value, str) and is_secret(name, value)
        if is_text or (isinstance(value, list) and has_secret(each for each in value if isinstance(each, str))):
            yield f"{place}{name}"
