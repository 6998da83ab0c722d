"""The job that imports a task of your own in the training image, before the run moves any data."""

from dataclasses import replace
from typing import Any

from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import UNBUFFERED, Job, Replica, RestartPolicy
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_logs import OnLine
from kubetrain_components.jobs.placement import WITHOUT_DEVICES, Placement
from kubetrain_components.jobs.quantity import amount
from kubetrain_components.run.parameters import RunParameters
from kubetrain_trainer.model_names import is_import_path

STAGE = "check_imports"
MEMORY = "2Gi"
SMALL: dict[str, Any] = {
    **WITHOUT_DEVICES,
    "cpu": "500m",
    "cpu_limit": "",
    "shm_size": "",
    "network": "",
    "together": "",
}
"""Settings that differ from those of the training pods."""


def check_imports(parameters: RunParameters, backend: JobBackend, on_line: OnLine) -> None:
    """
    Raises:
        JobFailed: if the training image has no such module or function.
    """
    for job in import_jobs(parameters):
        run_job(job, backend, on_line)


def import_jobs(parameters: RunParameters) -> list[Job]:
    """Return the job, if the run trains a task of your own."""
    if not parameters.framework or not is_import_path(parameters.train_config.model):
        return []
    identity = JobIdentity(pipeline=parameters.pipeline, stage=STAGE, run_id=parameters.run_id)
    return [import_job(identity, parameters.train_config.model, parameters.placement)]


def import_job(identity: JobIdentity, model: str, training: Placement) -> Job:
    command = ("python", "-m", "kubetrain_trainer.check_imports", model)
    return Job(
        identity=identity,
        kind=JobKind.BATCH_JOB,
        replicas=(
            Replica(role="Import", count=1, command=command, env=UNBUFFERED, restart_policy=RestartPolicy.NEVER),
        ),
        placement=_placement(training),
    )


def _placement(training: Placement) -> Placement:
    """Request little, but limit memory as for the training. Volumes and init containers may provide the code."""
    memory = min(MEMORY, training.memory or MEMORY, key=amount)
    limit = training.memory_limit or training.memory
    kept = {"init_containers": training.init_containers, "memory": memory, "memory_limit": limit}
    return replace(training, **{**SMALL, **kept})
