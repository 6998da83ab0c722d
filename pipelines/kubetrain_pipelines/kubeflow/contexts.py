"""Contexts: connections to Kubeflow Pipelines by name, in the file that `kubetrain config` writes."""

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kubetrain_trainer.durable_files import write_atomically
from kubetrain_trainer.errors import InvalidSetting, did_you_mean

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
PRIVATE = 0o600


@dataclass(frozen=True, kw_only=True)
class Context:
    endpoint: str = ""
    namespace: str = ""
    token_command: str = ""
    ca_file: str = ""


@dataclass(frozen=True, kw_only=True)
class Contexts:
    current: str = ""
    by_name: Mapping[str, Context] = field(default_factory=dict)

    def named(self, name: str) -> Context:
        """
        Raises:
            InvalidSetting: if no context has this name.
        """
        if name not in self.by_name:
            hint = did_you_mean(name, self.by_name) if self.by_name else "create it with `kubetrain config set`"
            raise InvalidSetting(f"no context is named '{name}': {hint}")
        return self.by_name[name]

    def at(self, endpoint: str) -> Context | None:
        """Return the context with this endpoint; of several, the current one or else the first."""
        current_first = sorted(self.by_name, key=lambda name: name != self.current)
        found = (self.by_name[name] for name in current_first)
        return next((each for each in found if each.endpoint.rstrip("/") == endpoint.rstrip("/")), None)

    def as_toml(self) -> str:
        lines = [f"current = {_quoted(self.current)}"]
        for name, context in self.by_name.items():
            lines += ["", f"[contexts.{name if BARE_KEY.fullmatch(name) else _quoted(name)}]"]
            lines += [f"{key} = {_quoted(value)}" for key, value in asdict(context).items() if value]
        return "\n".join(lines) + "\n"


def config_file() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME") or f"{os.environ.get('HOME', '')}/.config"
    return Path(folder, "kubetrain", "config.toml")


def read_contexts() -> Contexts:
    """
    Raises:
        InvalidSetting: with the line, if the file is not valid TOML, a name is unknown, or a value is of a wrong type.
    """
    path = config_file()
    if not path.is_file():
        return Contexts()
    try:
        text = path.read_text()
        content = tomllib.loads(text)
    except ValueError as error:
        raise InvalidSetting(f"{path} is not valid TOML: {error}") from error
    return _ConfigFile(path, text).contexts(content)


def write_contexts(contexts: Contexts) -> None:
    path = config_file().resolve()  # a link to a file in a folder of dotfiles stays one
    content = contexts.as_toml().encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content, PRIVATE)


@dataclass(frozen=True)
class _ConfigFile:
    path: Path
    text: str

    def contexts(self, content: Mapping[str, Any]) -> Contexts:
        self._check_names(content, ("current", "contexts"))
        tables = self._checked(content.get("contexts", {}), dict, "contexts")
        by_name = {name: self._context(table, "contexts", name) for name, table in tables.items()}
        contexts = Contexts(current=self._checked(content.get("current", ""), str, "current"), by_name=by_name)
        if contexts.current:
            contexts.named(contexts.current)
        return contexts

    def _context(self, table: Any, *keys: str) -> Context:
        self._check_names(self._checked(table, dict, *keys), Context.__dataclass_fields__, *keys)
        return Context(**{key: self._checked(value, str, *keys, key) for key, value in table.items()})

    def _checked(self, value: Any, kind: type, *keys: str) -> Any:
        if not isinstance(value, kind):
            raise self._error(f"{keys[-1]} must be a {'table' if kind is dict else 'string'}, not {value!r}", keys)
        return value

    def _check_names(self, table: Mapping[str, Any], known: Iterable[str], *keys: str) -> None:
        for name in table:
            if name not in known:
                raise self._error(f"unknown name '{name}': {did_you_mean(name, known)}", (*keys, name))

    def _error(self, problem: str, keys: tuple[str, ...]) -> InvalidSetting:
        """Return the error with the line that names the last key, after those that name the keys before it."""
        lines, number = self.text.splitlines(), 0
        for key in keys:
            names_key = re.compile(rf"[^=#]*(?<![\w-]){re.escape(key)}(?![\w-])")
            number = next((at for at in range(number, len(lines)) if names_key.match(lines[at])), number)
        return InvalidSetting(f"{self.path}, line {number + 1}: {problem}")


def _quoted(value: str) -> str:
    """Return printable text as a string of TOML, which is then like one of JSON."""
    if not value.isprintable():
        raise InvalidSetting(f"{value!r} has a character that is not printable: leave it out")
    return json.dumps(value, ensure_ascii=False)
