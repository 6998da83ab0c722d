"""A team's own repository: the table [tool.kubetrain] in a pyproject.toml, of the current folder or one above it.

[tool.kubetrain]
endpoint = "https://kubeflow.example.com/pipeline"  # of Kubeflow Pipelines; a context of the user must have it too
namespace = "team-a"  # the team's profile
pipelines = ["team_pipelines.nightly:nightly"]  # functions with @dsl.pipeline (default: kubetrain's own)
image_pull_secrets = ["registry"]  # secrets with which the pods of the pipelines' steps pull their image

[tool.kubetrain.images]  # references that the cluster's nodes can pull, ideally by digest
components = "registry.example.com/kubetrain/components@sha256:…"
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubetrain_trainer.errors import InvalidSetting, did_you_mean
from kubetrain_trainer.frameworks import PACKAGES

IMAGES = ("components", *PACKAGES)


@dataclass(frozen=True)
class Project:
    path: Path
    """The pyproject.toml, which exists if it has the table."""
    endpoint: str = ""
    namespace: str = ""
    pipelines: tuple[str, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict)
    image_pull_secrets: tuple[str, ...] = ()


def project() -> Project:
    """Read the table, which may be missing.

    Raises:
        InvalidSetting: if the file is not valid TOML, a name is unknown, or a value is invalid.
    """
    path, table = _nearest_table()
    known = ("endpoint", "namespace", "pipelines", "images", "image_pull_secrets")
    _check_names(path, "tool.kubetrain", table, known)
    images = table.get("images", {})
    _check_names(path, "tool.kubetrain.images", images, IMAGES)
    texts = {name: table.get(name, "") for name in ("endpoint", "namespace")}
    for name, value in {**texts, **images}.items():
        if not isinstance(value, str):
            raise InvalidSetting(f"{path}: {name} must be a string, not {value!r}")
    pipelines, secrets = (_strings(path, table, name) for name in ("pipelines", "image_pull_secrets"))
    if not all(all(pipeline.partition(":")) for pipeline in pipelines):
        raise InvalidSetting(
            f'{path}: pipelines must be a list like ["package.module:function"], not {list(pipelines)}'
        )
    return Project(path, **texts, pipelines=pipelines, images=images, image_pull_secrets=secrets)


def _nearest_table() -> tuple[Path, Mapping[str, Any]]:
    """Return the first table upward from the current folder, and its file."""
    here, *above = (folder / "pyproject.toml" for folder in (Path.cwd(), *Path.cwd().parents))
    for path in (here, *filter(_is_ours, above)):
        if table := _table(path):
            return path, table
    return here, {}


def _is_ours(path: Path) -> bool:
    """Return whether the file belongs to this user or root: it names code, and in /tmp anyone can leave one."""
    return path.is_file() and path.stat().st_uid in (os.getuid(), 0)


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
