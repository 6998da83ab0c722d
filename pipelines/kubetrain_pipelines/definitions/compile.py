"""Compile the pipelines to YAML files, or check that existing files are current.

The pipelines are those of the repository around the current folder, or else kubetrain's own.
"""

import difflib
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp.compiler import Compiler
from kfp.compiler.compiler_utils import KubernetesManifestOptions

from kubetrain_pipelines.definitions.images import image_warnings
from kubetrain_pipelines.definitions.pipeline_parameters import PIPELINES, TRAINING, function_path, parameters_of
from kubetrain_pipelines.definitions.project import project
from kubetrain_pipelines.definitions.version_name import version_name
from kubetrain_trainer.durable_files import write_atomically
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.processes.import_path import load_function

MAX_FILE_BYTES = 128 << 10
MAX_DIFF_LINES = 40


class CompiledFilesDiffer(KubetrainError):
    """The compiled files are stale."""


@dataclass(frozen=True, kw_only=True)
class OutputFormat:
    """The format of compiled files: plain for uploads, or Kubernetes objects for GitOps."""

    as_manifest: bool = False
    namespace: str = ""

    def options(self, name: str, plain: bytes) -> dict[str, Any]:
        """Return compiler options that name the version by its content, because versions are immutable."""
        options = KubernetesManifestOptions(
            pipeline_name=name,
            pipeline_version_name=version_name(name, plain),
            namespace=self.namespace or None,
            include_pipeline_manifest=True,
        )
        return {"kubernetes_manifest_format": True, "kubernetes_manifest_options": options}


def pipelines() -> dict[str, Any]:
    """Return the function of each pipeline by its name.

    Raises:
        InvalidSetting: if two have the same name, which is also that of the compiled file.
    """
    found: dict[str, str] = {}
    for path in project().pipelines or map(function_path, PIPELINES):
        name = path.partition(":")[2]
        if name in found:
            raise InvalidSetting(f"{found[name]} and {path} both compile to {name}.yaml: rename one of the functions")
        found[name] = path
    return {name: load_pipeline(path) for name, path in found.items()}


def source_of(pipeline: str) -> str:
    """Return the import path of a pipeline that a name or a path means: kubetrain's, or the repository's; else ""."""
    if ":" in pipeline:
        return pipeline
    paths = [*map(function_path, PIPELINES), *project().pipelines]
    return next((path for path in paths if path.partition(":")[2] == pipeline.replace("-", "_")), "")


def compiled_pipeline(source: str) -> bytes:
    """Return the file of one pipeline, by its import path."""
    with tempfile.TemporaryDirectory() as folder:
        _compile(load_pipeline(source), path := Path(folder, f"{source.partition(':')[2]}.yaml"))
        return path.read_bytes()


def load_pipeline(path: str) -> Any:
    """Return the function of a pipeline by its import path, also one of the repository."""
    try:
        return load_function(path, project().path.parent)
    except InvalidSetting:
        raise
    except (TypeError, ValueError) as error:  # KFP builds a pipeline when its module is imported
        raise InvalidSetting(f"{path} is not a pipeline: {error}") from error


def compiled_pipelines(output_format: OutputFormat) -> dict[str, bytes]:
    """Return the content of each file by its name.

    Raises:
        KubetrainError: if a file is larger than MAX_FILE_BYTES, which the Kubernetes API accepts with a margin.
    """
    compiled: dict[str, bytes] = {}
    names: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for file_name, pipeline in pipelines().items():
            path = Path(folder, f"{file_name}.yaml")
            _compile(pipeline, path)
            name = pipeline.pipeline_spec.pipeline_info.name
            if (other := names.setdefault(name, path.name)) != path.name:
                raise InvalidSetting(f"the pipelines of {other} and {path.name} are both named '{name}': rename one")
            if output_format.as_manifest:
                _compile(pipeline, path, **output_format.options(name, path.read_bytes()))
            compiled[path.name] = path.read_bytes()
    for name, content in compiled.items():
        if len(content) > MAX_FILE_BYTES:
            raise KubetrainError(f"{name} has {len(content)} bytes, more than {MAX_FILE_BYTES}: split the pipeline")
    return compiled


def _compile(pipeline: Any, path: Path, **options: Any) -> None:
    """
    Raises:
        InvalidSetting: if the function is not a pipeline that KFP accepts.
    """
    try:
        _offer_choices(pipeline.pipeline_spec)
        Compiler().compile(pipeline, str(path), **options)
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidSetting(
            f"{path.stem} cannot be compiled ({error}): see that it is a function with @dsl.pipeline, and has steps"
        ) from error


def _offer_choices(spec: Any) -> None:
    """Let the form show the choices of its fields as dropdowns, which KFP's SDK has no words for."""
    choices = {item.name: item.choices for pipeline in TRAINING for item in parameters_of(pipeline)}
    for name, parameter in spec.root.input_definitions.parameters.items():
        del parameter.literals[:]
        for choice in choices.get(name, ()):
            is_text = isinstance(choice, str)
            parameter.literals.add(**{"string_value" if is_text else "bool_value": choice})


def write_compiled(folder: Path, output_format: OutputFormat) -> list[str]:
    """Write the files that changed. Return what was done, and what remains for the reader to do."""
    compiled = {folder / name: content for name, content in compiled_pipelines(output_format).items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        changed = [path for path, content in compiled.items() if not path.is_file() or path.read_bytes() != content]
        for path in changed:
            write_atomically(path, compiled[path])
    except OSError as error:
        raise KubetrainError(
            f"cannot write to {folder} ({error.strerror or error}): pass a folder that you can write to as --output"
        ) from error
    warnings = image_warnings("".join(compiled[path].decode() for path in changed))
    return [
        *(f"wrote {path}" for path in changed),
        *_extra_files(folder, compiled),
        *(f"warning: {warning}" for warning in warnings),
    ]


def check_compiled(folder: Path, output_format: OutputFormat) -> None:
    """
    Raises:
        CompiledFilesDiffer: if a file is missing, stale or extra, with the differences and what to do about them.
    """
    compiled = {folder / name: content for name, content in compiled_pipelines(output_format).items()}
    differences = [found for path, content in compiled.items() if (found := _difference(path, content))]
    if differences:
        differences.insert(0, f"{folder} is stale: run `kubetrain compile` and commit the result")
    differences += _extra_files(folder, compiled)
    if differences:
        raise CompiledFilesDiffer("\n".join(differences))


def _extra_files(folder: Path, compiled: Iterable[Path]) -> list[str]:
    """Name the files that may be left from a pipeline that was renamed. They are not ours to delete."""
    extra = sorted(set(folder.glob("*.yaml")) - set(compiled))
    return [f"{path}: no pipeline compiles to this file: delete it" for path in extra]


def _difference(path: Path, content: bytes) -> str:
    if not path.is_file():
        return f"{path} is missing"
    lines = list(
        difflib.unified_diff(
            path.read_text().splitlines(),
            content.decode().splitlines(),
            f"{path} (current)",
            f"{path} (compiled)",
            n=1,
            lineterm="",
        )
    )
    more = f"... and {len(lines) - MAX_DIFF_LINES} more lines" if len(lines) > MAX_DIFF_LINES else ""
    return "\n".join([*lines[:MAX_DIFF_LINES], more]).rstrip()
