"""The step that runs the transfer job, and checks that the dataset has the splits of the run."""

from pathlib import Path
from typing import Any

from kubetrain_components.jobs.annotations import LABEL_PREFIX
from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import UNBUFFERED, ClaimMount, Job, Replica
from kubetrain_components.jobs.job_identity import LABEL_LENGTH, JobIdentity, slug
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_logs import OnLine
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.verdict import JobFailed, lead_result
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.stages import SYNC

STAGE = SYNC.name
STAGING_LABEL = LABEL_PREFIX + "staging"
"""Label of pods that write to a staging PVC: its name."""
TRANSFER = {"cpu": "1", "memory": "1Gi", "shm_size": ""}
"""Resources of the transfer's pod, which do not grow with the dataset."""
EVERY_POD = (
    "image_pull_policy",
    "image_pull_secrets",
    "service_account",
    "user",
    "istio",
    "labels",
    "annotations",
    "tolerations",
)
"""Settings of the training pods that also apply to the transfer's pod: what a namespace may demand of every pod."""


def sync_dataset(parameters: RunParameters, transfer: Job, backend: JobBackend, on_line: OnLine) -> dict[str, Any]:
    """Run the transfer job and return its report, which has the digest of the version.

    Raises:
        JobFailed: if the transfer failed.
        KubetrainError: if the dataset lacks a split that the run needs.
    """
    report = lead_result(transfer, run_job(transfer, backend, on_line))
    if report.get("status") != "completed":
        raise JobFailed(f"{STAGE} failed: the transfer job ended without a report; see its log")
    if not report["folders_cut"]:
        parameters.check_folders(report["folders"])
    return report


def transfer_placement(parameters: RunParameters) -> Placement:
    """The placement of the transfer's pod, which does not use the nodes of the training pods."""
    shared = {name: getattr(parameters.placement, name) for name in EVERY_POD}
    if parameters.placement.scheduler == "kueue":  # the only gang scheduler that also queues plain jobs
        shared |= {"scheduler": "kueue", "queue": parameters.placement.queue}
    if parameters.storage.staging.access_mode == "ReadWriteOnce":
        staging = {STAGING_LABEL: slug(parameters.storage.staging_claim, LABEL_LENGTH)}
        shared |= {"labels": {**shared["labels"], **staging}, "affinity": _near_pods(staging)}
    own = {"image": parameters.components_image, "env_secrets": [parameters.s3_secret]}
    return Placement.from_dict({**TRANSFER, **shared, **own, **parameters.storage.transfer})


def _near_pods(labels: dict[str, str]) -> dict[str, Any]:
    """Prefer the node of other runs' transfers, because only pods of one node can use the volume at once."""
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def transfer_job(parameters: RunParameters, staging: Path, mounts: tuple[ClaimMount, ...] = ()) -> Job:
    command = ["python", "-m", "kubetrain_components.sync_dataset.transfer"]
    command += ["--dataset-uri", parameters.dataset_uri, "--staging", str(staging)]
    command += ["--access", parameters.dataset_access]
    if parameters.s3_endpoint:
        command += ["--endpoint-url", parameters.s3_endpoint]
    command += [part for mount in mounts for part in ("--check-writable", mount.path)]
    return Job(
        identity=JobIdentity(pipeline=parameters.pipeline, stage=STAGE, run_id=parameters.run_id),
        kind=JobKind.BATCH_JOB,
        replicas=(Replica(role="Transfer", count=1, command=tuple(command), env=UNBUFFERED),),
        backoff_limit=3,
        placement=transfer_placement(parameters),
        mounts=mounts,
    )
