"""`kubetrain run`: a local run with its progress, and a summary at the end."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from rich.console import Console

from kubetrain_pipelines import bring_code
from kubetrain_pipelines.local_run.run import run_local
from kubetrain_pipelines.local_run.storage import local_parameters
from kubetrain_pipelines.local_run.summary import print_summary
from kubetrain_pipelines.parse_parameters import parse_parameters
from kubetrain_pipelines.project import project
from kubetrain_pipelines.run_view import open_view


def run_and_show(
    pipeline: str, workspace: Path, pairs: Iterable[str], params: Path | None, code: Path | None = None
) -> int:
    """Run the pipeline, show its progress and a summary, and return the exit code."""
    project()  # an error in it would otherwise be found in the process of the pipeline, without a cause
    brought = bring_code.pack(code, without=workspace)
    parameters = parse_parameters(local_parameters(pipeline), [*pairs, *bring_code.as_pairs(brought)], params)
    bring_code.check_is_here(brought, parameters.get("train_config", {}))
    console = Console()
    view = open_view(console)
    try:
        record = run_local(
            pipeline, workspace, parameters, view, partial(bring_code.use_here, brought, workspace / "code")
        )
    finally:
        view.close()
    print_summary(console, record)
    return 0 if record.status == "succeeded" else 1
