"""Runs a pipeline under kfp.local, which patches print and the root logger and therefore gets its own process.

python -m kubetrain_pipelines.local_run.pipeline PIPELINE WORKSPACE <parameters.json
"""

import json
import sys
import warnings
from pathlib import Path

from kfp import local

from kubetrain_pipelines.definitions.pipeline_parameters import function_path
from kubetrain_trainer.processes.import_path import load_function


def main() -> None:
    pipeline, workspace = sys.argv[1], Path(sys.argv[2])
    # kfp.local replaces every "python3" in a step's command line, even within paths, with sys.executable, unquoted.
    # This value leaves the text unchanged, and PATH selects the right interpreter.
    sys.executable = "python3"
    warnings.filterwarnings("ignore", message="You may be attemping to run a task that uses custom")
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(workspace / "kfp"), raise_on_error=True)
    try:
        load_function(function_path(pipeline))(**json.load(sys.stdin))
    except RuntimeError as error:
        print(error)
        sys.exit(1)


if __name__ == "__main__":
    main()
