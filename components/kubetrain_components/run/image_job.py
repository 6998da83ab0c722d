"""The job that finds out which image a name without a digest stands for: only the status of a pod tells its ID."""

from dataclasses import replace
from typing import Any

from kubetrain_components.jobs.job import Job, Replica
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.placement import WITHOUT_DEVICES
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.reuse import ImageVersion

STAGE = "inspect_image"
SMALL: dict[str, Any] = {
    **{"cpu": "100m", "memory": "128Mi", "memory_limit": "", "shm_size": ""},
    **WITHOUT_DEVICES,
    **{"volumes": [], "volume_mounts": [], "code_container": {}},
}
"""Settings that differ from those of the training pods, to which the rest of the placement applies."""


def image_job_is_needed(parameters: RunParameters) -> bool:
    return parameters.skip_unchanged and not ImageVersion(name=parameters.placement.image).content


def image_job(parameters: RunParameters) -> Job:
    """Return a job whose pod runs the training image on a node for training and ends at once."""
    return Job(
        identity=JobIdentity(pipeline=parameters.pipeline, stage=STAGE, run_id=parameters.run_id),
        kind=JobKind.BATCH_JOB,
        replicas=(Replica(role="Image", count=1, command=("true",)),),
        placement=replace(parameters.placement, **SMALL, cpu_limit=parameters.placement.limit_of(SMALL["cpu"])),
    )
