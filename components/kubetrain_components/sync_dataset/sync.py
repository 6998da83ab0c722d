"""The step that runs the transfer job, and checks that the dataset has the splits of the run."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import OWN_PROGRAM, ClaimMount, Job, Replica
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_logs import OnLine
from kubetrain_components.jobs.verdict import JobFailed, lead_result
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.stages import SYNC
from kubetrain_components.run.transfer_container import transfer_placement
from kubetrain_components.sync_dataset.report import SyncReport

STAGE = SYNC.name


def sync_dataset(parameters: RunParameters, transfer: Job, backend: JobBackend, on_line: OnLine) -> dict[str, Any]:
    """Run the transfer job and return its report, which has the digest of the version.

    Raises:
        JobFailed: if the transfer failed.
        KubetrainError: if the dataset lacks a split that the run needs.
    """
    if not parameters.dataset_uri:
        return asdict(SyncReport())
    report = lead_result(transfer, run_job(transfer, backend, on_line))
    if report.get("status") != "completed":
        raise JobFailed(f"{STAGE} failed: the transfer job ended without a report; see its log")
    if not report["folders_cut"]:
        parameters.check_folders(report["folders"])
    return report


def transfer_job(parameters: RunParameters, staging: Path, output: Path, mounts: tuple[ClaimMount, ...] = ()) -> Job:
    command = ["python", "-m", "kubetrain_components.sync_dataset.transfer"]
    command += ["--dataset-uri", parameters.dataset_uri, "--staging", str(staging)]
    command += ["--access", parameters.dataset_access]
    command += [part for pattern in parameters.dataset_include for part in ("--include", pattern)]
    command += [part for pattern in parameters.dataset_exclude for part in ("--exclude", pattern)]
    if parameters.s3_endpoint:
        command += ["--s3-endpoint", parameters.s3_endpoint]
    if weights := parameters.train_config.weights_uri:
        command += ["--weights", weights]
    lists_in_output = parameters.framework and parameters.data_in_place and not parameters.storage.output
    if weights or lists_in_output:
        command += ["--output", str(output)]
    if parameters.train_config.uses_cache:
        command += ["--cache-bytes", str(parameters.train_config.cache_bytes)]
    command += [part for mount in mounts if not mount.read_only for part in ("--check-writable", mount.path)]
    return Job(
        identity=JobIdentity(pipeline=parameters.pipeline, stage=STAGE, run_id=parameters.run_id),
        kind=JobKind.BATCH_JOB,
        replicas=(Replica(role="Transfer", count=1, command=tuple(command), env=OWN_PROGRAM),),
        backoff_limit=3,
        placement=transfer_placement(parameters),
        mounts=mounts,
    )
