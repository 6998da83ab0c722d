"""A team's own repository: the table [tool.kubetrain] in the pyproject.toml of the current folder.

[tool.kubetrain]
pipelines = ["team_pipelines.nightly:nightly"]  # functions with @dsl.pipeline (default: kubetrain's own)
image_pull_secrets = ["registry"]  # secrets with which the pods of the pipelines' steps pull their image

[tool.kubetrain.images]  # references that the cluster's nodes can pull, ideally by digest
components = "registry.example.com/kubetrain/components@sha256:…"
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kubetrain_trainer.errors import InvalidSetting, did_you_mean
from kubetrain_trainer.frameworks import PACKAGES

IMAGES = ("components", *PACKAGES)


@dataclass(frozen=True)
class Project:
    pipelines: tuple[str, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict)
    image_pull_secrets: tuple[str, ...] = ()


@cache
def project(folder: Path | None = None) -> Project:
    """Read the table, which may be missing.

    Raises:
        InvalidSetting: if the file is not valid TOML, a name is unknown, or a value is invalid.
    """
    path = (folder or Path.cwd()) / "pyproject.toml"
    table = _table(path)
    _check_names(path, "tool.kubetrain", table, ("pipelines", "images", "image_pull_secrets"))
    images = table.get("images", {})
    _check_names(path, "tool.kubetrain.images", images, IMAGES)
    for name, image in images.items():
        if not isinstance(image, str):
            raise InvalidSetting(f"{path}: the image {name} must be a string, not {image!r}")
    pipelines, secrets = (_strings(path, table, name) for name in ("pipelines", "image_pull_secrets"))
    if not all(all(pipeline.partition(":")) for pipeline in pipelines):
        raise InvalidSetting(
            f'{path}: pipelines must be a list like ["package.module:function"], not {list(pipelines)}'
        )
    return Project(pipelines, images, secrets)


def _table(path: Path) -> Mapping[str, Any]:
    """Return kubetrain's table. A broken file without it belongs to another tool, and does not matter here."""
    if not path.is_file():
        return {}
    content = path.read_bytes()
    try:
        parsed = tomllib.loads(content.decode())
    except ValueError as error:
        if b"tool.kubetrain" not in content:
            return {}
        raise InvalidSetting(f"{path} is not valid TOML: {error}") from error
    tools = parsed.get("tool", {})
    return tools.get("kubetrain", {}) if isinstance(tools, Mapping) else {}


def _strings(path: Path, table: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = table.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidSetting(f"{path}: {name} must be a list of strings, not {value!r}")
    return tuple(value)


def _check_names(path: Path, table: str, content: Any, known: tuple[str, ...]) -> None:
    if not isinstance(content, Mapping):
        raise InvalidSetting(f"{path}: [{table}] must be a table, not {content!r}")
    for name in content:
        if name not in known:
            raise InvalidSetting(f"{path}: unknown name '{name}' in [{table}]: {did_you_mean(name, known)}")
