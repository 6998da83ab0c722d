"""A manifest, from which each field with a counterpart is taken. What is left has none, so that nothing is dropped."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kubetrain_components.secret_values import without_secrets
from kubetrain_trainer.errors import InvalidSetting

KINDS = {dict: "an object", list: "a list", str: "a string", int: "a whole number", bool: "true or false"}
MAX_SHOWN = 400
SET_BY_NAME = re.compile(r"\.(schedulingGates|dnsConfig\.options|resources\.claims)$")
"""Lists in which an object says something by its name alone; elsewhere the name only tells it from others."""


@dataclass(frozen=True)
class Fields:
    content: dict[str, Any]
    path: str = ""

    @property
    def name(self) -> str:
        return str(self.content.get("name", ""))

    def at(self, path: str) -> "Fields":
        """Return the object at a path, empty if it is missing."""
        found = self
        for name in path.split("."):
            inner = found.content.get(name, {})
            found = Fields(_checked(inner, dict, found.path_of(name)), found.path_of(name))
        return found

    def get(self, path: str, kind: Any, default: Any = None) -> Any:
        *parents, name = path.split(".")
        parent = self.at(".".join(parents)) if parents else self
        return _checked(parent.content[name], kind, parent.path_of(name)) if name in parent.content else default

    def take(self, path: str, kind: Any, default: Any = None) -> Any:
        value = self.get(path, kind, default)
        self.drop(path)
        return value

    def drop(self, *paths: str) -> None:
        for path in paths:
            *parents, name = path.split(".")
            (self.at(".".join(parents)) if parents else self).content.pop(name, None)

    def drop_if(self, path: str, *values: Any) -> None:
        """Drop a field whose value is what kubetrain does anyway."""
        if self.get(path, object) in values:
            self.drop(path)

    def items(self, name: str) -> list["Fields"]:
        """Return the objects of a list."""
        values = self.get(name, list, [])
        paths = [f"{self.path_of(name)}[{index}]" for index in _indexes(values)]
        return [Fields(_checked(value, dict, path), path) for value, path in zip(values, paths, strict=True)]

    def take_all(self) -> dict[str, Any]:
        taken = dict(self.content)
        self.content.clear()
        return taken

    def leaves(self, *, with_empty: bool = False) -> dict[str, Any]:
        """Return the values by path.

        Args:
            with_empty: True to include objects without fields, such as the emptyDir of a volume. What is left of a
                manifest has many that were emptied.
        """
        return dict(_leaves(self.content, self.path, with_empty))

    def path_of(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def shown(path: str, value: Any) -> str:
    """Return the value of a field for people, without secrets."""
    if value == {}:
        return ""
    text = json.dumps(without_secrets(path, value), ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _checked(value: Any, kind: Any, path: str) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidSetting(f"{path} must be {KINDS.get(kind, 'a string or a number')}: correct the manifest")
    return value


def _leaves(value: Any, path: str, with_empty: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and (value or not with_empty):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name, with_empty)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, inner in zip(_indexes(value), value, strict=True):
            yield from _leaves(_without_name(inner, path), f"{path}[{index}]", with_empty)
    elif value != []:
        yield path, value


def _without_name(item: Any, path: str) -> Any:
    """Return what an object of a list sets, or its name if that is what it sets."""
    rest = {name: value for name, value in item.items() if name != "name"} if isinstance(item, dict) else item
    return item.get("name") if rest == {} and SET_BY_NAME.search(path) else rest


def _indexes(values: list[Any]) -> list[str]:
    """Return the names of objects, or else their numbers."""
    names = [value.get("name") if isinstance(value, dict) else None for value in values]
    return [str(name) if name and names.count(name) == 1 else str(number) for number, name in enumerate(names)]
