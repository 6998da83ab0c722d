"""A compiled pipeline: what it is called, which parameters it takes, and by what name people read its stages."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from kubetrain_pipelines.version_name import version_name
from kubetrain_trainer.errors import InvalidSetting, did_you_mean

FOLDER = Path("compiled")
SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, kw_only=True)
class CompiledFile:
    path: Path
    content: bytes
    spec: Mapping[str, Any]

    @classmethod
    def find(cls, pipeline: str) -> Self:
        """
        Args:
            pipeline: A compiled file, or the name of one in ./compiled.

        Raises:
            InvalidSetting: where there is none.
        """
        path = Path(pipeline)
        if path.suffix not in SUFFIXES:
            path = FOLDER / f"{pipeline.replace('-', '_')}.yaml"
        if not path.is_file():
            raise InvalidSetting(_missing(pipeline, path))
        return cls.read(path)

    @classmethod
    def read(cls, path: Path) -> Self:
        content = path.read_bytes()
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            spec = next(iter(yaml.load_all(content, loader)))
        except (yaml.YAMLError, StopIteration) as error:
            raise InvalidSetting(f"{path} is no YAML: name what `kubetrain compile` writes") from error
        if not isinstance(spec, dict) or not {"pipelineInfo", "root"} <= spec.keys():
            raise InvalidSetting(f"{path} is no compiled pipeline: name what `kubetrain compile` writes")
        return cls(path=path, content=content, spec=spec)

    @property
    def name(self) -> str:
        return str(self.spec["pipelineInfo"]["name"])

    @property
    def description(self) -> str:
        return str(self.spec["pipelineInfo"].get("description", ""))

    @property
    def version(self) -> str:
        """In the UI it says which pipeline it is of."""
        return version_name(self.name, self.content)

    @property
    def parameters(self) -> Mapping[str, Mapping[str, Any]]:
        """By name: parameterType, defaultValue, description."""
        found: Mapping[str, Mapping[str, Any]] = self.spec["root"].get("inputDefinitions", {}).get("parameters", {})
        return found


def stage_titles(spec: Mapping[str, Any]) -> dict[str, str]:
    """By task: the name that people read, also of tasks in pipelines within the pipeline."""
    parts = [spec["root"], *spec.get("components", {}).values()]
    return {
        task: each.get("taskInfo", {}).get("name", task)
        for part in parts
        for task, each in part.get("dag", {}).get("tasks", {}).items()
    }


def _missing(pipeline: str, path: Path) -> str:
    there = [each.stem.replace("_", "-") for each in sorted(FOLDER.glob("*.yaml"))]
    if path.parent != FOLDER or not there:
        return f"there is no {path}: name a compiled pipeline's file, or write those of ours by `kubetrain compile`"
    return f"there is no {path}: {did_you_mean(pipeline, there)}"
