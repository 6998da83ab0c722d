"""Settings from several sources: parameters of a pipeline, a JSON object, the configuration of a task."""

from collections.abc import Mapping
from typing import Any, TypeVar

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings import Settings

Kind = TypeVar("Kind", bound=Settings)


def combine_settings(kind: type[Kind], sources: Mapping[str, Mapping[str, Any]]) -> Kind:
    """Combine the settings of several sources. Everything in a source counts as set, even at its default.

    Args:
        sources: The settings of each source, by its name in messages.

    Raises:
        InvalidSetting: if two sources contradict each other, or a setting cannot be used.
    """
    values: dict[str, Any] = {}
    source_of: dict[str, str] = {}
    for source, given in sources.items():
        for name, value in kind.each_of(given).items():
            values[name] = _merge(name, values[name], value, (source_of[name], source)) if name in values else value
            source_of[name] = source
    return kind.from_dict(values)


def settings_of_form(kind: type[Settings], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a run's own parameters set.

    Kubeflow Pipelines sends every parameter, so one at its default may not have been set: it sets nothing.
    """
    return kind.from_dict({name: parameters[name] for name in kind.names() if name in parameters}).changed_settings()


def _merge(name: str, first: Any, second: Any, sources: tuple[str, str]) -> Any:
    """Merge two values: lists and objects add up, unless objects have different values for a key."""
    if isinstance(first, list):
        return [*first, *(each for each in second if each not in first)]
    if isinstance(first, Mapping):
        for key in first.keys() & second.keys():
            _check_equal(f"{name} {key}", first[key], second[key], sources)
        return {**first, **second}
    _check_equal(name, first, second, sources)
    return first


def _check_equal(name: str, first: Any, second: Any, sources: tuple[str, str]) -> None:
    if first != second:
        raise InvalidSetting(f"{name} is {first!r} in {sources[0]} but {second!r} in {sources[1]}: set it in one place")
