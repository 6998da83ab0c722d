"""A team's own repository: the table [tool.kubetrain] in the pyproject.toml of the current folder.

[tool.kubetrain]
pipelines = ["team_pipelines.nightly:nightly"]  # functions with @dsl.pipeline (default: kubetrain's own)

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


@cache
def project(folder: Path | None = None) -> Project:
    """Read the table, which may be missing.

    Raises:
        InvalidSetting: if the file is not valid TOML, a name is unknown, or a value is invalid.
    """
    path = (folder or Path.cwd()) / "pyproject.toml"
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return Project()
    except tomllib.TOMLDecodeError as error:
        raise InvalidSetting(f"{path} is not valid TOML: {error}") from error
    table = content.get("tool", {}).get("kubetrain", {})
    _check_names(path, "tool.kubetrain", table, ("pipelines", "images"))
    _check_names(path, "tool.kubetrain.images", table.get("images", {}), IMAGES)
    pipelines = table.get("pipelines", [])
    if not isinstance(pipelines, list) or not all(isinstance(each, str) and ":" in each for each in pipelines):
        raise InvalidSetting(f'{path}: pipelines must be a list like ["package.module:function"], not {pipelines!r}')
    return Project(tuple(pipelines), table.get("images", {}))


def _check_names(path: Path, table: str, content: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in content:
        if name not in known:
            raise InvalidSetting(f"{path}: unknown name '{name}' in [{table}]: {did_you_mean(name, known)}")
