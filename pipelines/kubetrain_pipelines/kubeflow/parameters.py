"""What a run's parameters are: --params and --set, as the compiled pipeline takes them.

What is no parameter itself may be a setting of the training, of the pods' placement or of the storage, which the
pipeline takes as JSON objects.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kubetrain_pipelines.params_file import OBJECTS, read_params
from kubetrain_trainer.errors import InvalidSetting, did_you_mean

Definitions = Mapping[str, Mapping[str, Any]]

KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "STRING": ("a text", (str,)),
    "NUMBER_INTEGER": ("a whole number", (int,)),
    "NUMBER_DOUBLE": ("a number", (int, float)),
    "BOOLEAN": ("true or false", (bool,)),
    "LIST": ("a JSON list", (list,)),
    "STRUCT": ("a JSON object", (dict,)),
}


def run_parameters(definitions: Definitions, pairs: Iterable[str] = (), file: Path | None = None) -> dict[str, Any]:
    """The parameters of a run; what is said later counts for more, and the settings of an object add up.

    Raises:
        InvalidSetting: for a pair that is none, an unknown name (with the nearest valid one), a value of another type,
            or a parameter that is missing.
    """
    said: list[tuple[str, Any]] = [*read_params(file).items()]
    said += [_parsed(definitions, pair) for pair in pairs]
    values: dict[str, Any] = {}
    places = _places(definitions)
    for name, value in said:
        if name in definitions:
            _check(name, definitions[name], value)
            values[name] = {**values.get(name, {}), **value} if name in places else value
        else:
            place = _place_of(name, definitions)
            values[place] = {**values.get(place, {}), name: value}
    for place in places & values.keys():
        OBJECTS[place].from_dict(values[place])
    _check_complete(definitions, values)
    return values


def _parsed(definitions: Definitions, pair: str) -> tuple[str, Any]:
    name, separator, text = pair.partition("=")
    if not separator:
        raise InvalidSetting(f"--set takes name=value, not '{pair}'")
    if name not in definitions:
        return name, OBJECTS[_place_of(name, definitions)].parse(name, text)
    if definitions[name]["parameterType"] == "STRING":
        return name, text
    try:
        return name, json.loads(text)
    except ValueError:
        raise _unusable(name, definitions[name], text) from None


def _place_of(name: str, definitions: Definitions) -> str:
    """Which of the objects has a setting of this name."""
    places = {place: OBJECTS[place].names() for place in OBJECTS if place in _places(definitions)}
    for place, names in places.items():
        if name in names:
            return place
    known = [*definitions, *(each for names in places.values() for each in names)]
    raise InvalidSetting(f"unknown setting '{name}': {did_you_mean(name, known)}")


def _places(definitions: Definitions) -> set[str]:
    return {place for place in OBJECTS if definitions.get(place, {}).get("parameterType") == "STRUCT"}


def _check(name: str, definition: Mapping[str, Any], value: Any) -> None:
    _, types = KINDS[definition["parameterType"]]
    is_other = not isinstance(value, types) or (isinstance(value, bool) and bool not in types)
    if is_other or (isinstance(value, float) and not math.isfinite(value)):
        raise _unusable(name, definition, value)


def _unusable(name: str, definition: Mapping[str, Any], value: Any) -> InvalidSetting:
    described, _ = KINDS[definition["parameterType"]]
    return InvalidSetting(f"{name} must be {described}, not '{value}'")


def _check_complete(definitions: Definitions, values: Mapping[str, Any]) -> None:
    for name, definition in definitions.items():
        if name not in values and "defaultValue" not in definition and not definition.get("isOptional"):
            meaning = definition.get("description", "the pipeline needs it").rstrip(".")
            raise InvalidSetting(f"{name} is missing ({meaning}): give it by --set {name}=…")
