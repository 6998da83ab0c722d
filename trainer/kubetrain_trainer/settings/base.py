"""Settings: frozen dataclasses that convert to JSON and flags and back, and validate each field."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from kubetrain_trainer.errors import InvalidSetting, did_you_mean

if TYPE_CHECKING:
    from typing import Self

MAX_INTEGER = 2**31 - 1
"""Kubernetes accepts no larger users and counts."""


def setting(
    default: Any,
    meaning: str,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    only: str = "",
    pytorch_choices: tuple[str, ...] = (),
    used_with: tuple[str, Any] | None = None,
    is_changeable: bool = False,
    entry: str = "",
    is_internal: bool = False,
    is_required: bool = False,
    in_form: bool = False,
    name: str = "",
) -> Any:
    """Declare a field with its meaning (and unit), its valid values, and all that the code knows about it.

    Args:
        only: The framework that has this setting, or cluster; empty: both frameworks, and also a run on one machine.
        pytorch_choices: Choices that TensorFlow does not have.
        used_with: Another setting and the value without which this one has no effect.
        is_changeable: If a run may change it when it resumes, because it does not decide what is learned.
        entry: Beside an entry: used, refused, or (if empty) without effect unless the user's code reads it.
        is_internal: If commands set it, and users do not see it.
        is_required: If a run on a cluster cannot do without it.
        in_form: If the form of Kubeflow Pipelines has a field for it.
        name: GROUP.NAME by which users set it, if that is not the group of its class and the name of its field.
    """
    maximum = MAX_INTEGER if type(default) is int and maximum is None else maximum
    rules = {"meaning": meaning, "minimum": minimum, "above": above, "maximum": maximum, "choices": choices}
    facts = {"only": only, "pytorch_choices": pytorch_choices, "used_with": used_with, "is_changeable": is_changeable}
    shown = {"is_internal": is_internal, "is_required": is_required, "in_form": in_form, "name": name}
    declared = {**rules, **facts, **shown, "entry": entry}
    if isinstance(default, (dict, list)):
        return dataclasses.field(default_factory=default.copy, metadata=declared)
    return dataclasses.field(default=default, metadata=declared)


@dataclass(frozen=True)
class Settings:
    """Base of the classes whose fields are all declared with setting()."""

    GROUP: ClassVar[str]
    """The group of these settings, with which their names begin."""

    def __post_init__(self) -> None:
        for field in (item for item in fields(self) if item.metadata):
            object.__setattr__(self, field.name, self._checked(field, getattr(self, field.name)))

    @classmethod
    def names(cls) -> list[str]:
        return [field.name for field in fields(cls)]

    @classmethod
    def names_with(cls, fact: str, value: Any = True) -> list[str]:
        """Return the settings whose declaration says this."""
        return [field.name for field in fields(cls) if field.metadata[fact] == value]

    @classmethod
    def public_name(cls, name: str) -> str:
        """Return the name by which users set the field: GROUP.NAME."""
        return str(cls.declared(name)["name"] or f"{cls.GROUP}.{name}")

    @classmethod
    def declared(cls, name: str) -> Mapping[str, Any]:
        """Return what the declaration of a setting says."""
        return next(field.metadata for field in fields(cls) if field.name == name)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Create settings from parsed JSON.

        Raises:
            InvalidSetting: if a name is unknown, or a value has the wrong type or is out of range.
        """
        cls._check_names(values)
        return cls(**values)

    @classmethod
    def within(cls, choice: str, values: Mapping[str, Any]) -> Self:
        """Create the settings that an object among other settings holds, whose names depend on this choice.

        Raises:
            InvalidSetting: as from_dict() does, naming the object and the choice.
        """
        try:
            return cls.from_dict(values)
        except InvalidSetting as error:
            raise InvalidSetting(f"{error} (with {choice})") from None

    @classmethod
    def some_of(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return some of the settings, each by itself: what contradicts them may be set elsewhere too.

        Raises:
            InvalidSetting: if a name is unknown, or a value has the wrong type or is out of range.
        """
        cls._check_names(values)
        return {field.name: cls._checked(field, values[field.name]) for field in fields(cls) if field.name in values}

    @classmethod
    def _checked(cls, field: Field[Any], value: Any) -> Any:
        name = cls.public_name(field.name)
        value = coerced(name, kind_of(field), value)
        _check_rules(name, value, field.metadata)
        return value

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def parse(cls, name: str, text: str) -> Any:
        """Parse the value of a setting from text on a command line."""
        cls._check_name(name)
        kind = next(kind_of(field) for field in fields(cls) if field.name == name)
        return parse_value(cls.public_name(name), kind, text)

    @classmethod
    def _check_names(cls, values: Mapping[str, Any]) -> None:
        if not isinstance(values, Mapping):
            raise InvalidSetting(f"{cls.GROUP} must be an object of settings, not {values!r}")
        for name in values:
            cls._check_name(name)

    @classmethod
    def _check_name(cls, name: str) -> None:
        if name not in (names := cls.names()):
            raise InvalidSetting(f"unknown setting '{cls.GROUP}.{name}': {did_you_mean(name, names)}")

    @classmethod
    def add_flags(cls, parser: argparse._ActionsContainer) -> None:
        for field in fields(cls):
            parser.add_argument(_flag(field.name), metavar="VALUE", help=field.metadata["meaning"].replace("%", "%%"))

    @classmethod
    def from_flags(cls, arguments: argparse.Namespace) -> Self:
        given = {name: text for name in cls.names() if (text := getattr(arguments, name)) is not None}
        return cls.from_dict({name: cls.parse(name, text) for name, text in given.items()})

    def to_flags(self) -> tuple[str, ...]:
        """Return the settings that differ from their defaults as flags for a job's command line."""
        return tuple(part for name, value in self.changed_settings().items() for part in (_flag(name), as_text(value)))

    def changed_settings(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults."""
        return changed_fields(self)

    @property
    def digest(self) -> str:
        """A hash of the settings that differ from their defaults, so that adding a setting does not change it."""
        canonical = json.dumps(self.changed_settings(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def changed_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults, which includes those without a default."""
    return {field.name: own for field in fields(value) if (own := getattr(value, field.name)) != default_of(field)}


def kind_of(field: Field[Any]) -> type:
    """Return the type of a setting's values, which is that of its default."""
    return type(default_of(field))


def default_of(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def as_text(value: Any) -> str:
    """Format a value so that parse() reads it back."""
    return value if isinstance(value, str) else json.dumps(value)


class RepeatedName(ValueError):
    """A JSON object has a name twice, of which JSON's parser would drop the first value silently."""


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        RepeatedName: if it has a name twice.
    """
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise RepeatedName(f"'{name}' is given twice")
    return dict(pairs)


def parse_value(name: str, kind: Any, text: str) -> Any:
    """Parse a value from text on a command line: a string as it is, other types from JSON.

    Raises:
        InvalidSetting: if the text is not valid JSON.
    """
    if kind is str:
        return text
    try:
        return json.loads(text, object_pairs_hook=without_repeats)
    except RepeatedName as error:
        raise InvalidSetting(f"{name}: {error}") from None
    except (ValueError, RecursionError):  # also a number of thousands of digits
        raise InvalidSetting(f"{name} must be {_describe(kind)}, not '{text}'") from None


def coerced(name: str, kind: Any, value: Any) -> Any:
    """Convert a value to the given type. Integral floats become integers, because kfp.local turns integers in a dict
    into floats.

    Raises:
        InvalidSetting: if the value has another type.
    """
    if kind is int and _is_number(value) and int(value) == value:
        return int(value)
    if kind is float and _is_number(value):
        return float(value)
    if kind in (str, bool) and isinstance(value, kind):
        return value
    if (kind is dict and isinstance(value, Mapping)) or (kind is list and isinstance(value, (list, tuple))):
        return _integers_restored(value)
    raise InvalidSetting(f"{name} must be {_describe(kind)}, not {value!r}")


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _integers_restored(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _integers_restored(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_integers_restored(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _describe(kind: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", list: "a JSON list"}
    return words.get(kind, "a JSON object")


def _check_rules(name: str, value: Any, rules: Mapping[str, Any]) -> None:
    if rules["choices"] and value not in rules["choices"]:
        raise InvalidSetting(f"{name} cannot be '{value}': {did_you_mean(value, rules['choices'])}")
    if rules["minimum"] is not None and value < rules["minimum"]:
        raise InvalidSetting(f"{name} must be at least {rules['minimum']}, not {_short(value)}")
    if rules["above"] is not None and value <= rules["above"]:
        raise InvalidSetting(f"{name} must be above {rules['above']}, not {_short(value)}")
    if rules["maximum"] is not None and value > rules["maximum"]:
        raise InvalidSetting(f"{name} must be at most {rules['maximum']}, not {_short(value)}")


def _short(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
