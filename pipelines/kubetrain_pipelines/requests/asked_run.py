"""A run as users ask for it: a file or a pipeline's name, and settings that replace those of the file."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubetrain_components.bring_code.function_script import SCRIPT
from kubetrain_components.object_store.sources import sources_of
from kubetrain_components.run.names import GROUPS, RunSetting, find_setting, suggestion
from kubetrain_components.run.request import Request, by_name, merged, value_of
from kubetrain_pipelines.requests.request_file import WITHOUT_OWN, RequestFile, read_source
from kubetrain_pipelines.requests.yaml_text import parse_yaml
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.output.model_folder import HIDDEN
from kubetrain_trainer.settings.base import kind_of

FROM_FILE = "@"
OF_TEXTS = ("data.uri", "pods.env", "pods.nccl", "pods.rendezvous", "pods.secret_env")
"""The settings whose parts are texts, such as 1.10 and 010, or an object in the place of one."""


@dataclass(frozen=True, kw_only=True)
class AskedRun:
    """What a command or a function was given. Later settings replace earlier ones: file, pairs, settings."""

    source: str = ""
    """The name of a pipeline, a compiled one, or a file that describes a run."""
    pairs: tuple[str, ...] = ()
    """GROUP.NAME=VALUE."""
    settings: Mapping[str, Any] | None = None
    """Values by group, from Python."""
    code: Path | None = None
    """A folder of the user's own code."""

    def read(self) -> RequestFile:
        """
        Raises:
            InvalidSetting: if the file cannot be read, a name is unknown, or a value is invalid.
        """
        read = read_source(self.source)
        own, request = dict(read.own), read.request
        for name, value in (self.settings or {}).items():
            if name in GROUPS:
                request = merged(request, {name: _checked(name, value)})
            elif callable(value):
                raise InvalidSetting(f"there is no setting '{name}': {suggestion(name)}")
            else:
                own[name] = _as_json(name, value)
        for pair in self.pairs:
            name, separator, text = pair.partition("=")
            if not separator:
                raise InvalidSetting(f"--set takes GROUP.NAME=VALUE, not '{pair}'")
            if "." in name:
                request = _with_pair(request, name, text)
            else:
                own[name] = parse_yaml(text, name)
        for name in own if read.pipeline in WITHOUT_OWN else ():
            raise InvalidSetting(f"there is no setting '{name}': {suggestion(name)}")
        if read.is_record:
            _check_complete(self.source, request, own)
        return RequestFile(pipeline=read.pipeline, request=request, own=own)


def _checked(group: str, named: Any) -> dict[str, Any]:
    if not isinstance(named, Mapping):
        raise InvalidSetting(f"{group} must have settings by name, not {named!r}")
    given = {find_setting(f"{group}.{key}"): value for key, value in named.items() if value is not None}
    return {setting.key: value_of(setting, _as_json(setting.name, value)) for setting, value in given.items()}


def _as_json(name: str, value: Any) -> Any:
    """Return a value of Python as JSON has it: lists instead of tuples, text instead of paths, scripts of functions."""
    if name == "train.entry" and callable(value):
        return SCRIPT
    try:
        return json.loads(json.dumps(value, default=os.fspath, allow_nan=False))
    except (TypeError, ValueError):
        raise InvalidSetting(f"{name} must be a value of JSON (text, number, true, list, …), not {value!r}") from None


def _check_complete(source: str, request: Request, own: Mapping[str, Any]) -> None:
    """
    Raises:
        InvalidSetting: for a setting that a run's record has without its value.
    """
    for name, value in {**by_name(request), **own}.items():
        if HIDDEN in repr(value):
            raise InvalidSetting(f"{source} has no value of {name}, which may be a secret: set it with --set")


def _with_pair(request: Request, name: str, text: str) -> Request:
    """Return the request with a setting, or with one part of a setting that is an object: pods.nccl.NCCL_DEBUG=INFO."""
    group, key, *part = name.split(".", 2)
    setting = find_setting(f"{group}.{key}")
    value = _parsed(setting, name, text, is_part=bool(part))
    if part:
        before = request.get(group, {}).get(key, {})
        if setting.name == "data.uri":
            before = {name: uri for name, uri in sources_of(before or "").items() if name}
        value = {**before, part[0]: value}
    return merged(request, {group: {key: value_of(setting, value)}})


def _parsed(setting: RunSetting, name: str, text: str, *, is_part: bool) -> Any:
    """Return the value of a text, or of the file after @: text where text is wanted, else YAML or JSON."""
    kind = kind_of(setting.field)
    if is_part and kind is not dict and setting.name != "data.uri":
        raise InvalidSetting(f"{setting.name} has no parts, so {name} names nothing: set {setting.name}")
    if text.startswith(FROM_FILE):
        text = _content_of(name, Path(text.removeprefix(FROM_FILE)))
    takes_text = setting.name in OF_TEXTS if is_part else kind in (str, list) or setting.name == "train.entry"
    is_structure = (kind is dict and text.startswith("{")) or (kind is list and text.startswith(("[", "- ")))
    return text if takes_text and not is_structure else parse_yaml(text, name)


def _content_of(name: str, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"{name}: {file} cannot be read ({error}): name a text file after @") from error
