"""A local run as the command line and Python ask for it: with settings as text, and a folder of your own code."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from kubetrain_pipelines import bring_code
from kubetrain_pipelines.local_run.record import RunRecord
from kubetrain_pipelines.local_run.run import run_local
from kubetrain_pipelines.local_run.storage import local_parameters
from kubetrain_pipelines.parse_parameters import parse_parameters
from kubetrain_pipelines.project import project
from kubetrain_pipelines.run_view import progress_view


def run_requested(
    pipeline: str, workspace: Path, pairs: Iterable[str], params: Path | None, code: Path | None
) -> RunRecord:
    """Run the pipeline and show its progress.

    Raises:
        KubetrainError: if the run cannot start. A later failure is in the returned record.
    """
    project()  # an error in it would otherwise be found in the process of the pipeline, without a cause
    brought = bring_code.pack(code, without=workspace)
    parameters = parse_parameters(local_parameters(pipeline), [*pairs, *bring_code.as_pairs(brought)], params)
    bring_code.check_is_here(brought, parameters.get("train_config", {}))
    unpack_code = partial(bring_code.unpack_here, brought, workspace / "code")
    with progress_view() as view:
        return run_local(pipeline, workspace, parameters, view, unpack_code)
