"""A request for a run: values by group and name, as users write them, as forms carry them, and as parameters."""

import shlex
from collections.abc import Container, Mapping
from typing import Any

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.object_store.sources import text_of
from kubetrain_components.run.names import GROUPS, KINDS, SETTINGS, RunSetting, find_setting
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.run_settings import RunSettings
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.base import Settings, as_text, kind_of, parse_value
from kubetrain_trainer.settings.config import TrainConfig

Request = dict[str, dict[str, Any]]
"""Values by group and name, of the settings that are set."""
MORE = "more"
"""The field of each group in a form that holds the settings without a field of their own."""
OF_OTHER_PODS = ("pods.evaluation", "storage.transfer")
"""The settings that hold settings of pods, by their names without the group."""


def value_of(setting: RunSetting, given: Any) -> Any:
    """Return a value with the type of its setting. An entry may be written as the command line that it is.

    Raises:
        InvalidSetting: if it has another type, or is none that the setting can have.
    """
    kind = kind_of(setting.field)
    if given is None:
        raise InvalidSetting(f"{setting.name} has no value: give it one, or leave it out")
    if setting.name == "train.entry" and isinstance(given, str):
        given = _entry_of(given)
    if setting.name == "data.uri" and isinstance(given, Mapping):
        given = text_of({str(folder): uri for folder, uri in given.items()})
    if kind is list and isinstance(given, str):  # one text stands for a list of it
        given = parse_value(setting.name, list, given) if given.startswith("[") else [given]
    if kind is str and isinstance(given, int | float) and not isinstance(given, bool):
        given = str(given)  # such as a cpu of 4
    if kind is float and isinstance(given, str):
        given = _number_of(given)
    if setting.name in OF_OTHER_PODS and isinstance(given, Mapping):
        given = {key: value_of(_of_other_pods(setting.name, key), value) for key, value in given.items()}
    return setting.kind.some_of({setting.field.name: given})[setting.field.name]


def _of_other_pods(name: str, key: str) -> RunSetting:
    found = find_setting(f"pods.{key}")
    if found.kind is not Placement:
        raise InvalidSetting(f"{name} cannot set {found.name}, which is not of one pod: leave it out")
    return found


def _number_of(text: str) -> Any:
    """Return the number that YAML takes for text, such as 1e-3."""
    try:
        return float(text)
    except ValueError:
        return text


def _entry_of(text: str) -> Any:
    if text.startswith("{"):
        return parse_value("train.entry", dict, text)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidSetting(f"train.entry is not a command line ({error}): quote it as in a shell") from None
    if words and words[0].endswith(".py"):
        return {"script": words[0], **({"args": words[1:]} if words[1:] else {})}
    return {"command": words} if words else {}


def merged(*requests: Mapping[str, Mapping[str, Any]]) -> Request:
    """Return one request, in which later values replace earlier ones."""
    groups = (group for group in GROUPS if any(group in request for request in requests))
    return {
        group: {name: value for request in requests for name, value in request.get(group, {}).items()}
        for group in groups
    }


def by_name(request: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values by GROUP.NAME."""
    return {f"{group}.{key}": value for group, named in request.items() for key, value in named.items()}


def without(request: Mapping[str, Mapping[str, Any]], names: Container[str]) -> Request:
    """Return the other settings of a request."""
    return {
        group: {key: value for key, value in named.items() if f"{group}.{key}" not in names}
        for group, named in request.items()
    }


def parameters_of(request: Mapping[str, Mapping[str, Any]], **of_run: Any) -> RunParameters:
    """Return the checked parameters that a request stands for.

    Raises:
        InvalidSetting: for the first that cannot be used.
    """
    values: dict[type[Settings], dict[str, Any]] = {kind: {} for kind in KINDS}
    for name, value in by_name(request).items():
        setting = find_setting(name)
        values[setting.kind][setting.field.name] = value_of(setting, value)
    return RunParameters(
        train_config=TrainConfig.from_dict(values[TrainConfig]),
        placement=Placement.from_dict(values[Placement]),
        storage=Storage.from_dict(values[Storage]),
        **values[RunSettings],
        **of_run,
    )


def request_of(parameters: RunParameters) -> Request:
    """Return the request for these parameters: all settings that differ from their defaults."""
    carriers: dict[type[Settings], Settings] = {
        RunSettings: parameters,
        TrainConfig: parameters.train_config,
        Placement: parameters.placement,
        Storage: parameters.storage,
    }
    request: Request = {}
    for setting in SETTINGS.values():
        value = getattr(carriers[setting.kind], setting.field.name)
        if value != setting.default:
            request.setdefault(setting.group, {})[setting.key] = value
    return request


def request_of_form(form: Mapping[str, Any]) -> Request:
    """Return the request that a filled-in form stands for. It sends every field, so one at its default sets nothing.

    Raises:
        InvalidSetting: if a setting with a field of its own is among the others of its group.
    """
    request: Request = {}
    fields = {setting.form_field: setting for setting in SETTINGS.values() if setting.form_field in form}
    for name, setting in fields.items():
        if (value := value_of(setting, form[name])) != setting.default:
            request.setdefault(setting.group, {})[setting.key] = value
    for group in GROUPS:
        for key, value in (form.get(f"{group}_{MORE}") or {}).items():
            if f"{group}_{key}" in form:
                raise InvalidSetting(f"{group}.{key} is in {group}_{MORE}, but has a field of its own: set it there")
            request.setdefault(group, {})[key] = value
    return request


def form_of(request: Mapping[str, Mapping[str, Any]], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a form that stand for a request.

    Args:
        defaults: The fields that the form has, with their defaults.

    Raises:
        InvalidSetting: if the form has no field for a setting.
    """
    form: dict[str, Any] = {}
    for name, value in by_name(request).items():
        group, _, key = name.partition(".")
        own, more = f"{group}_{key}", f"{group}_{MORE}"
        if own in defaults:
            form[own] = as_text(value) if key == "entry" else value
        elif more in defaults:
            form.setdefault(more, dict(defaults[more] or {}))[key] = value
        else:
            raise InvalidSetting(f"this pipeline has no setting {name}: leave it out")
    return form
