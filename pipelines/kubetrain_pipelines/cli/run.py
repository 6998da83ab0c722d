"""`kubetrain run`: a local run with its progress, and a summary at the end."""

import time
from pathlib import Path

import click
from rich.console import Console

from kubetrain_components.run.stages import TRAIN
from kubetrain_pipelines.local_run.record import read_run
from kubetrain_pipelines.local_run.requested_run import run_requested
from kubetrain_pipelines.local_run.summary import print_summary
from kubetrain_pipelines.requests.asked_run import AskedRun
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.checkpoint_layout import resumable_checkpoints


def run_and_show(asked: AskedRun, workspace: Path) -> int:
    """Run the pipeline, show its progress and a summary, and return the exit code."""
    started = time.time()
    try:
        record = run_requested(asked, workspace)
    except KeyboardInterrupt:
        if run_id := stopped_with_checkpoint(workspace, started):
            click.echo(f"the training saved a checkpoint: --set train.resume_from={run_id} continues from it", err=True)
        raise
    print_summary(Console(), record)
    return 0 if record.status == "succeeded" else 1


def stopped_with_checkpoint(workspace: Path, since: float) -> str:
    """Return the ID of the run that began since then if its training was stopped after a checkpoint, or ""."""
    try:
        record = read_run(workspace)
    except (KubetrainError, OSError):  # it was stopped before it had a record
        return ""
    if record.started < since or record.has_finished(TRAIN) or not record.output:
        return ""
    return record.run_id if resumable_checkpoints(record.output.checkpoints) else ""
