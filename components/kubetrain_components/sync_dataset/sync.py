"""The step: check the run's parameters, then have the transfer job make the dataset version."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import UNBUFFERED, Job, JobIdentity, JobKind, Replica
from kubetrain_components.jobs.job_logs import OnLine
from kubetrain_components.jobs.verdict import JobFailed, lead_result
from kubetrain_components.run_parameters import RunParameters

STAGE = "sync_dataset"


@dataclass(frozen=True, kw_only=True)
class SyncRequest:
    source: str
    endpoint_url: str
    access: str
    pipeline: str
    run_id: str


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


def transfer_job(request: SyncRequest, staging: Path) -> Job:
    command = ["python", "-m", "kubetrain_components.sync_dataset.transfer"]
    command += ["--source", request.source, "--staging", str(staging), "--access", request.access]
    if request.endpoint_url:
        command += ["--endpoint-url", request.endpoint_url]
    return Job(
        identity=JobIdentity(pipeline=request.pipeline, stage=STAGE, run_id=request.run_id),
        kind=JobKind.BATCH_JOB,
        replicas=(Replica(role="Transfer", count=1, command=tuple(command), env=UNBUFFERED),),
        backoff_limit=3,
    )
