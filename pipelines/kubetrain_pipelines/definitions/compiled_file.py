"""A compiled pipeline: its name, its parameters, and the titles of its stages."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import yaml

from kubetrain_components import OUTPUT_PATH
from kubetrain_components.run.stages import SYNC
from kubetrain_pipelines.definitions.pipeline_parameters import PIPELINES, REQUIRED, Parameter
from kubetrain_pipelines.definitions.version_name import version_name
from kubetrain_trainer.errors import InvalidSetting, did_you_mean

FOLDER = Path("compiled")
INPUTS_OF_SYNC = {"data_uri", "components_image"}
"""Inputs by which kubetrain's own step is known."""
SUFFIXES = (".yaml", ".yml")
TYPES = {
    "STRING": str,
    "NUMBER_INTEGER": int,
    "NUMBER_DOUBLE": float,
    "BOOLEAN": bool,
    "LIST": list,
    "STRUCT": dict,
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
            pipeline: The path of a compiled file, which may lack its suffix, the name of one in ./compiled, or what
                `kubetrain compile` would compile: a name, or module:function.

        Raises:
            InvalidSetting: if the file does not exist or is not a compiled pipeline.
        """
        path = Path(pipeline)
        if path.suffix not in SUFFIXES:
            folder = FOLDER if path.parent == Path() else path.parent
            path = folder / f"{path.name.replace('-', '_')}.yaml"
        if path.is_file():
            return cls.read(path)
        from kubetrain_pipelines.definitions.compile import compiled_pipeline, source_of

        if not (source := source_of(pipeline)):
            raise InvalidSetting(_missing(pipeline, path))
        return cls._parsed(path, compiled_pipeline(source))

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls._parsed(path, path.read_bytes())

    @classmethod
    def _parsed(cls, path: Path, content: bytes) -> Self:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            spec = next(iter(yaml.load_all(content, loader)))
        except (yaml.YAMLError, StopIteration) as error:
            raise InvalidSetting(f"{path} is not valid YAML: pass a file written by `kubetrain compile`") from error
        if not _is_pipeline(spec):
            raise InvalidSetting(f"{path} is not a compiled pipeline: pass a file written by `kubetrain compile`")
        return cls(path=path, content=content, spec=spec)

    def without_output_claim(self) -> Self:
        """Return the pipeline whose steps mount no output PVC, because they read the output from a store."""
        documents = list(yaml.safe_load_all(self.content))
        for platform in (document.get("platforms", {}).get("kubernetes", {}) for document in documents):
            for executor in platform.get("deploymentSpec", {}).get("executors", {}).values():
                others = [mount for mount in executor.get("pvcMount", ()) if mount["mountPath"] != OUTPUT_PATH]
                executor.update(pvcMount=others)
        return replace(self, content=yaml.safe_dump_all(documents).encode())

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

    def first_step(self, form: Mapping[str, Any]) -> dict[str, Any]:
        """Return what sync_dataset gets if these parameters are set; {} if it is not a step of the pipeline itself."""
        given = {item.name: item.default for item in self.parameters} | dict(form)
        inputs = {}
        for name, source in self._inputs_of_sync().items():
            match source:
                case {"componentInputParameter": parameter}:
                    inputs[name] = given[parameter]
                case {"runtimeValue": {"constant": constant}}:
                    inputs[name] = constant
        return inputs

    def _inputs_of_sync(self) -> Mapping[str, Any]:
        tasks = self.spec["root"].get("dag", {}).get("tasks", {})
        inputs: Mapping[str, Any] = tasks.get(SYNC.task, {}).get("inputs", {}).get("parameters", {})
        return inputs if inputs.keys() >= INPUTS_OF_SYNC else {}


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
    if Path(pipeline).is_file():
        return f"{pipeline} is a file, but its name does not end in .yaml, .yml or .json: rename it"
    if path.parent != FOLDER:
        return f"{path} does not exist: pass a compiled pipeline, or create ./compiled with `kubetrain compile`"
    compiled = (item.stem.replace("_", "-") for item in FOLDER.glob("*.yaml"))
    return f"unknown pipeline '{pipeline}': {did_you_mean(pipeline, {*PIPELINES, *compiled})}"
