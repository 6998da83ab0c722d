"""Runs a pipeline under kfp.local, which patches print and the root logger and therefore gets its own process.

python -m kubetrain_pipelines.local_run.pipeline PIPELINE WORKSPACE <parameters.json
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

from kfp import components, local

from kubetrain_pipelines.definitions.compile import load_pipeline, source_of
from kubetrain_pipelines.definitions.compiled_file import CompiledFile


def main() -> None:
    pipeline, workspace = sys.argv[1], Path(sys.argv[2])
    # kfp.local replaces every "python3" in a step's command line, even within paths, with sys.executable, unquoted.
    # This value leaves the text unchanged, and PATH selects the right interpreter.
    sys.executable = "python3"
    warnings.filterwarnings("ignore", message="You may be attemping to run a task that uses custom")
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(workspace / "kfp"), raise_on_error=True)
    try:
        _loaded(pipeline)(**json.load(sys.stdin))
    except RuntimeError as error:
        print(error)
        sys.exit(1)


def _loaded(pipeline: str) -> Any:
    """Return the function of a pipeline, or a component that is the compiled one."""
    if source := source_of(pipeline):
        return load_pipeline(source)
    return components.load_component_from_text(CompiledFile.find(pipeline).content.decode())


if __name__ == "__main__":
    main()
