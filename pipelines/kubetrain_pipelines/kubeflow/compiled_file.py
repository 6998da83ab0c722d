"""A compiled pipeline: its name, its parameters, and the titles of its stages."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from kubetrain_pipelines.definitions.pipeline_parameters import REQUIRED, Parameter
from kubetrain_pipelines.definitions.version_name import version_name
from kubetrain_trainer.errors import InvalidSetting, did_you_mean

FOLDER = Path("compiled")
SUFFIXES = (".yaml", ".yml")
TYPES = {
    "STRING": str,
    "NUMBER_INTEGER": int,
    "NUMBER_DOUBLE": float,
    "BOOLEAN": bool,
    "LIST": list[Any],
    "STRUCT": dict[str, Any],
}


@dataclass(frozen=True, kw_only=True)
class CompiledFile:
    path: Path
    content: bytes
    spec: Mapping[str, Any]

    @classmethod
    def find(cls, pipeline: str) -> Self:
        """
        Args:
            pipeline: The path of a compiled file, which may lack its suffix, or the name of one in ./compiled.

        Raises:
            InvalidSetting: if the file does not exist or is not a compiled pipeline.
        """
        path = Path(pipeline)
        if path.suffix not in SUFFIXES:
            folder = FOLDER if path.parent == Path() else path.parent
            path = folder / f"{path.name.replace('-', '_')}.yaml"
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
            raise InvalidSetting(f"{path} is not valid YAML: pass a file written by `kubetrain compile`") from error
        if not _is_pipeline(spec):
            raise InvalidSetting(f"{path} is not a compiled pipeline: pass a file written by `kubetrain compile`")
        return cls(path=path, content=content, spec=spec)

    @property
    def name(self) -> str:
        return str(self.spec["pipelineInfo"]["name"])

    @property
    def description(self) -> str:
        return str(self.spec["pipelineInfo"].get("description", ""))

    @property
    def version(self) -> str:
        """The version's name, which includes the pipeline's because the UI lists versions by name only."""
        return version_name(self.name, self.content)

    @property
    def parameters(self) -> list[Parameter]:
        definitions = self.spec["root"].get("inputDefinitions", {}).get("parameters", {})
        return [_parameter(name, definition) for name, definition in definitions.items()]


def _is_pipeline(spec: Any) -> bool:
    """Return True if the file has a name, and parameters of known types."""
    match spec:
        case {"pipelineInfo": {"name": str()}, "root": dict(root)}:
            match root.get("inputDefinitions", {}):
                case {"parameters": dict(parameters)}:
                    return all(map(_has_type, parameters.values()))
                case dict(others):
                    return "parameters" not in others
    return False


def _has_type(definition: Any) -> bool:
    return isinstance(definition, dict) and str(definition.get("parameterType")) in TYPES


def _parameter(name: str, definition: Mapping[str, Any]) -> Parameter:
    return Parameter(
        name=name,
        type=TYPES[definition["parameterType"]],
        description=definition.get("description", "required by the pipeline"),
        default=definition.get("defaultValue", None if definition.get("isOptional") else REQUIRED),
    )


def stage_titles(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the display names by task, including the tasks of nested pipelines."""
    parts = [spec["root"], *spec.get("components", {}).values()]
    return {
        task: each.get("taskInfo", {}).get("name", task)
        for part in parts
        for task, each in part.get("dag", {}).get("tasks", {}).items()
    }


def _missing(pipeline: str, path: Path) -> str:
    names = [item.stem.replace("_", "-") for item in sorted(FOLDER.glob("*.yaml"))]
    if path.parent != FOLDER or not names:
        return f"{path} does not exist: pass a compiled pipeline, or create ./compiled with `kubetrain compile`"
    return f"{path} does not exist: {did_you_mean(pipeline, names)}"
