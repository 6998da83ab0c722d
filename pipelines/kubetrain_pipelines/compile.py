"""Pipelines and their compiled form in compiled/: written, or compared with what is there.

They are those of the repository where the command runs, or else kubetrain's own.
"""

import difflib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp.compiler import Compiler
from kfp.compiler.compiler_utils import KubernetesManifestOptions

from kubetrain_pipelines.pipeline_parameters import PIPELINES, function_path
from kubetrain_pipelines.project import project
from kubetrain_pipelines.version_name import version_name
from kubetrain_trainer.durable_files import write_atomically
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.import_path import load_function

LARGEST_FILE_BYTES = 128 << 10
SHOWN_DIFF_LINES = 40


class CompiledFilesDiffer(KubetrainError):
    """What is in compiled/ is not what the pipelines compile to."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """What a compiled file is for: to be uploaded, or to be applied to a cluster that keeps its pipelines there."""

    as_manifest: bool = False
    namespace: str = ""

    def options(self, name: str, plain: bytes) -> dict[str, Any]:
        """A version is named by its content: Kubernetes lets nobody change one."""
        wanted = KubernetesManifestOptions(
            pipeline_name=name,
            pipeline_version_name=version_name(name, plain),
            namespace=self.namespace or None,
            include_pipeline_manifest=True,
        )
        return {"kubernetes_manifest_format": True, "kubernetes_manifest_options": wanted}


def pipelines() -> dict[str, Callable[..., object]]:
    """Return the function of each pipeline by its name."""
    paths = project().pipelines or map(function_path, PIPELINES)
    return {path.partition(":")[2]: load_function(path) for path in paths}


def compiled_pipelines(form: Form = Form()) -> dict[str, bytes]:
    """From file name to content.

    Raises:
        KubetrainError: where a file is larger than the Kubernetes API takes with a margin.
    """
    compiled = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, pipeline in pipelines().items():
            path = Path(folder, f"{name}.yaml")
            Compiler().compile(pipeline, str(path))
            if form.as_manifest:
                options = form.options(name.replace("_", "-"), path.read_bytes())
                Compiler().compile(pipeline, str(path), **options)
            compiled[path.name] = path.read_bytes()
    for name, content in compiled.items():
        if len(content) > LARGEST_FILE_BYTES:
            raise KubetrainError(f"{name} has {len(content)} bytes, more than {LARGEST_FILE_BYTES}: split the pipeline")
    return compiled


def write_compiled(folder: Path, form: Form = Form()) -> list[Path]:
    """Write what has changed, and return its paths."""
    folder.mkdir(parents=True, exist_ok=True)
    compiled = {folder / name: content for name, content in compiled_pipelines(form).items()}
    changed = [path for path, content in compiled.items() if not path.is_file() or path.read_bytes() != content]
    for path in changed:
        write_atomically(path, compiled[path])
    return changed


def check_compiled(folder: Path, form: Form = Form()) -> None:
    """
    Raises:
        CompiledFilesDiffer: with what differs, and the command that mends it.
    """
    compiled = compiled_pipelines(form)
    differences = [
        difference for name, content in compiled.items() if (difference := _difference(folder / name, content))
    ]
    differences += [f"{path}: no pipeline compiles to this file" for path in _others(folder, compiled)]
    if differences:
        raise CompiledFilesDiffer(
            "\n".join([f"{folder} is stale: run `kubetrain compile` and commit what it writes", *differences])
        )


def _others(folder: Path, compiled: dict[str, bytes]) -> list[Path]:
    return [path for path in sorted(folder.glob("*.yaml")) if path.name not in compiled]


def _difference(path: Path, content: bytes) -> str:
    if not path.is_file():
        return f"{path} is missing"
    lines = list(
        difflib.unified_diff(
            path.read_text().splitlines(),
            content.decode().splitlines(),
            f"{path} (there)",
            f"{path} (compiled now)",
            n=1,
            lineterm="",
        )
    )
    more = f"... and {len(lines) - SHOWN_DIFF_LINES} more lines" if len(lines) > SHOWN_DIFF_LINES else ""
    return "\n".join([*lines[:SHOWN_DIFF_LINES], more]).rstrip()
