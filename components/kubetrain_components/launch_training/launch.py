"""Run the training job to its end, and accept its success only with a complete checkpoint."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_logs import OnLine
from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.verdict import JobFailed, has_lost_proof, lead_result
from kubetrain_components.launch_training.command_job import CommandJob
from kubetrain_components.launch_training.training_job import STAGE, TrainingJob
from kubetrain_components.run.training_time import account_of, training_time
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.time_spent import summarize

PROOF = {"step", "checkpoint", "manifest_sha256"}
"""Keys of the report that rank 0 writes when its last checkpoint is complete."""
Launched = TypeVar("Launched", TrainingJob, CommandJob)


def with_launcher(training: Launched, backend: JobBackend) -> Launched:
    """Return the training with the launcher that this cluster or machine has for it, and print which and why."""
    launcher, why = backend.launcher(training.launcher, training.framework, training.identity)
    print(f"launcher: {launcher} ({why})", flush=True)
    return replace(training, launcher=launcher)


def launch_training(
    training: TrainingJob, backend: JobBackend, on_line: OnLine, *, follow_all: bool = False
) -> dict[str, Any]:
    """Train, and return the step, name and manifest hash of the last checkpoint, and what the time was spent on.

    The name is empty if the pods that reported it are gone: the next step, which has the output, verifies every
    byte.

    Raises:
        JobFailed: if a pod failed, or nothing proves that the training completed.
    """
    job = training.to_job()
    with accounting_failures(job, backend, partial(_own_account, training)):
        state = run_job(job, backend, on_line, follow_all=follow_all)
    result = {**lead_result(job, state), "image_id": state.image_id}
    result["time"] = training_time(backend.times(job), result.get("time", {})).to_json()
    if not training.is_here and has_lost_proof(job, state):
        on_line(
            LogLine(job.lead, "the job succeeded, but its pods were deleted: the next step verifies its checkpoint")
        )
        return {**result, "status": "completed", "checkpoint": "", "step": 0}
    if result.get("status") != "completed" or not result.keys() >= PROOF:
        raise JobFailed(f"{STAGE} failed: every pod exited with code 0, but rank 0 reported no checkpoint; see its log")
    if not training.is_here:
        return result
    checkpoint = TrainingOutput(training.output_dir).verify_result(result)
    return {**result, "epoch": checkpoint.manifest["epoch"], "world_size": checkpoint.manifest["world_size"]}


@contextlib.contextmanager
def accounting_failures(job: Job, backend: JobBackend, own: Callable[[], Mapping[str, Any]] = dict) -> Iterator[None]:
    """Let the failure of a job say what it cost and what its time was spent on.

    Args:
        own: Returns what the trainer has written about its time.
    """
    try:
        yield
    except JobFailed as failure:
        failure.account = account_of(training_time(backend.times(job), own()))
        raise


def _own_account(training: TrainingJob) -> dict[str, Any]:
    """Return what a trainer that failed has written about its time, if its output is on this machine."""
    return summarize(TrainingOutput(training.output_dir).time_spent) if training.is_here else {}
