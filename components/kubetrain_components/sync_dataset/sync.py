"""The step: check the run's parameters, then have the transfer job make the dataset version."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import UNBUFFERED, Job, JobIdentity, Replica
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_logs import OnLine
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.verdict import JobFailed, lead_result
from kubetrain_components.object_store.store import Access
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.sync_request import SyncRequest

STAGE = "sync_dataset"
S3_SECRET = "kubetrain-s3"  # noqa: S105 - its name
"""May be missing: the pods' service account counts then."""
TRANSFER = {"cpu": "1", "memory": "1Gi", "shm_size": ""}
"""What a transfer needs; nothing of it grows with the dataset."""
EVERY_POD = ("image_pull_policy", "image_pull_secrets", "service_account", "user", "istio")
"""Settings of the training's pods that hold for the transfer's too."""


def sync_dataset(
    parameters: RunParameters, request: SyncRequest, staging: Path, backend: JobBackend, on_line: OnLine
) -> dict[str, Any]:
    """What the transfer job found and did; the version's digest is in it.

    Raises:
        InvalidSetting: where any parameter of the run cannot be used.
        JobFailed: where the transfer failed.
        KubetrainError: where the dataset lacks a split that the run needs.
    """
    parameters.check()
    job = transfer_job(request, staging)
    report = lead_result(job, run_job(job, backend, on_line))
    if report.get("status") != "completed":
        raise JobFailed(f"{STAGE} failed: the transfer job ended without saying what it made; look at its log")
    if not report["folders_cut"]:  # of a dataset with thousands of folders the report names some only
        parameters.check_folders(report["folders"])
    return report


def transfer_placement(training: Placement, image: str, s3_secret: str, changes: Mapping[str, Any]) -> Placement:
    """Where the transfer's pod runs: not on the nodes that the training's pods ask for."""
    shared = {name: getattr(training, name) for name in EVERY_POD}
    return Placement.from_dict({**TRANSFER, **shared, "image": image, "env_secrets": [s3_secret], **changes})


def transfer_job(request: SyncRequest, staging: Path) -> Job:
    command = ["python", "-m", "kubetrain_components.sync_dataset.transfer"]
    command += ["--source", request.source, "--staging", str(staging), "--access", request.access]
    if request.endpoint_url:
        command += ["--endpoint-url", request.endpoint_url]
    for mount in request.mounts:
        command += [] if mount.read_only else ["--check-writable", mount.path]
    return Job(
        identity=JobIdentity(pipeline=request.pipeline, stage=STAGE, run_id=request.run_id),
        kind=JobKind.BATCH_JOB,
        replicas=(Replica(role="Transfer", count=1, command=tuple(command), env=UNBUFFERED),),
        backoff_limit=3,
        placement=_with_credentials(request),
        mounts=request.mounts,
    )


def _with_credentials(request: SyncRequest) -> Placement:
    if request.placement.env_secrets or request.access == Access.ANONYMOUS:
        return request.placement
    return replace(request.placement, env_secrets=[S3_SECRET])
