"""Settings that come from several places: parameters of a pipeline, a JSON object, a task's own configuration."""

from collections.abc import Mapping
from typing import Any, TypeVar

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings import Settings

Kind = TypeVar("Kind", bound=Settings)


def combined(kind: type[Kind], sources: Mapping[str, Mapping[str, Any]]) -> Kind:
    """The settings that all of these places make together. One that stands at its default says nothing.

    Args:
        sources: What each place says, by what people call it.

    Raises:
        InvalidSetting: where two places say different things, or one what cannot be used.
    """
    usual = kind()
    values: dict[str, Any] = {}
    said_by: dict[str, str] = {}
    for source, said in sources.items():
        settings = kind.from_dict(said)
        for name in said:
            value = getattr(settings, name)
            if value == getattr(usual, name):
                continue
            values[name] = _both(name, values[name], value, (said_by[name], source)) if name in values else value
            said_by[name] = source
    return kind.from_dict(values)


def _both(name: str, first: Any, second: Any, sources: tuple[str, str]) -> Any:
    """Lists add up, objects too unless they differ about a key."""
    if isinstance(first, list):
        return [*first, *(each for each in second if each not in first)]
    if isinstance(first, Mapping):
        for key in first.keys() & second.keys():
            _refuse_if_different(f"{name} {key}", first[key], second[key], sources)
        return {**first, **second}
    _refuse_if_different(name, first, second, sources)
    return first


def _refuse_if_different(name: str, first: Any, second: Any, sources: tuple[str, str]) -> None:
    if first != second:
        raise InvalidSetting(f"{name} is {first!r} by {sources[0]} and {second!r} by {sources[1]}: set it in one place")
