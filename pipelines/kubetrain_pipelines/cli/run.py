"""`kubetrain run`: a local run with its progress, and a summary at the end."""

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from kubetrain_pipelines.local_run.requested_run import run_requested
from kubetrain_pipelines.local_run.summary import print_summary


def run_and_show(
    pipeline: str, workspace: Path, pairs: Iterable[str], params: Path | None, code: Path | None = None
) -> int:
    """Run the pipeline, show its progress and a summary, and return the exit code."""
    record = run_requested(pipeline, workspace, pairs, params, code)
    print_summary(Console(), record)
    return 0 if record.status == "succeeded" else 1
