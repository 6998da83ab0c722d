"""YAML as people mean it: YAML 1.2, in which 1e-3 is a number and no is a word; JSON is a part of it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from kubetrain_trainer.errors import InvalidSetting

RESOLVED = {
    "null": (r"(?:~|null|Null|NULL|)", ("~", "n", "N", "")),
    "bool": (r"(?:true|True|TRUE|false|False|FALSE)", tuple("tTfF")),
    "int": (r"[-+]?[0-9]+", tuple("-+0123456789")),
    "float": (r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", tuple("-+.0123456789")),
}
"""The text of scalars that are not strings, and how it may begin."""


class Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012 - replaces those of YAML 1.1

    def construct_document(self, node: yaml.Node) -> Any:
        """Construct inner values first, which refuses an alias of a value that holds it."""
        self.deep_construct = True
        return super().construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a key that is given twice, of which YAML's own constructor would drop the first value silently."""
        lines: dict[str, int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            line = key.start_mark.line + 1
            if key.value in lines:
                raise RepeatedKey(f"'{key.value}' is given twice, first in line {lines[key.value]}", line)
            lines[key.value] = line
        return super().construct_mapping(node, deep)


class RepeatedKey(ValueError):
    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012


for kind, (pattern, beginnings) in RESOLVED.items():
    for reads_or_writes in (Loader, Dumper):
        tag = f"tag:yaml.org,2002:{kind}"
        reads_or_writes.add_implicit_resolver(tag, re.compile(rf"^{pattern}$"), list(beginnings))


def _whole_number(loader: Loader, node: yaml.ScalarNode) -> int:
    return int(str(loader.construct_scalar(node)))  # 010 is ten


Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)


def parse_yaml(text: str, where: str) -> Any:
    """
    Raises:
        InvalidSetting: if the text is not valid, or has several documents.
    """
    return only_document(parse_documents(text, where), where)


def only_document(documents: Sequence[Any], where: str) -> Any:
    """
    Raises:
        InvalidSetting: if there are several.
    """
    if len(documents) > 1:
        raise InvalidSetting(f"{where} has {len(documents)} YAML documents: write one, without ---")
    return next(iter(documents), None)


def parse_documents(text: str, where: str) -> list[Any]:
    """
    Args:
        where: What has the text, for messages.

    Raises:
        InvalidSetting: if it is not valid, with the line.
    """
    try:
        return list(yaml.load_all(text, Loader))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InvalidSetting(f"{where}, line {line}: {error.problem}: write valid YAML or JSON") from None
    except RepeatedKey as error:
        raise InvalidSetting(f"{where}, line {error.line}: {error}: remove one") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:  # such as !!bool maybe
        raise InvalidSetting(f"{where} is not valid YAML or JSON: {error}") from None


def to_yaml(content: Mapping[str, Any]) -> str:
    """Return the text that parse_yaml reads back."""
    text: str = yaml.dump(dict(content), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


def lines_of(text: str) -> Mapping[tuple[str, ...], int]:
    """Return the line of each key of a valid text, and of each key of the mappings in it."""
    lines: dict[tuple[str, ...], int] = {}
    root = yaml.compose(text, Loader)
    for key, inner in root.value if isinstance(root, yaml.MappingNode) else ():
        lines[key.value,] = key.start_mark.line + 1
        for name, _ in inner.value if isinstance(inner, yaml.MappingNode) else ():
            lines[key.value, name.value] = name.start_mark.line + 1
    return lines
