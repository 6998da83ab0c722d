"""One pipeline under kfp.local, in a process of its own: kfp.local patches print and replaces the root logger.

python -m kubetrain_pipelines.local_run.pipeline PIPELINE WORKSPACE <parameters.json
"""

import json
import sys
import warnings
from pathlib import Path

from kfp import local

from kubetrain_pipelines.pipeline_parameters import function_path
from kubetrain_trainer.import_path import load_function


def main() -> None:
    pipeline, workspace = sys.argv[1], Path(sys.argv[2])
    # kfp.local puts sys.executable in place of every "python3" in a step's command line, paths among its arguments
    # included, and does not quote it. This way the text stays what it was, and PATH finds the interpreter.
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
