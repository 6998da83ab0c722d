"""`kubetrain run`: the run, shown while it goes on, with a closing table."""

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from kubetrain_pipelines.local_run.run import run_local
from kubetrain_pipelines.local_run.summary import print_summary
from kubetrain_pipelines.pipeline_parameters import framework_of
from kubetrain_pipelines.run_view import open_view
from kubetrain_pipelines.settings import parameters_of, parse_settings


def run_and_show(pipeline: str, workspace: Path, pairs: Iterable[str]) -> int:
    """Returns the exit code."""
    framework = framework_of(pipeline)
    settings = parse_settings(framework, pairs, parameters_of(framework))
    console = Console()
    view = open_view(console)
    try:
        record = run_local(pipeline, workspace, settings, view)
    finally:
        view.close()
    print_summary(console, record)
    return 0 if record.status == "succeeded" else 1
