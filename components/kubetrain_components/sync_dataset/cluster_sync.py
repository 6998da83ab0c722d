"""The step on a cluster: claims, the transfer's job, what training pods mount, and pruning, in this order."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubetrain_components import OUTPUT_PATH
from kubetrain_components.expose_dataset.claims import SNAPSHOT, Claims
from kubetrain_components.expose_dataset.ensure_claim import WantedClaim, ensure_claim
from kubetrain_components.expose_dataset.expose import Exposure, ExposureMode, version_path
from kubetrain_components.expose_dataset.expose_version import check_exposure, expose_version
from kubetrain_components.expose_dataset.prune import uses_of
from kubetrain_components.expose_dataset.prune_claims import prune_claims, prune_snapshots, uses_now
from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.expose_dataset.waiting import Say
from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import UNBUFFERED, ClaimMount, Job, JobIdentity, LogLine, Replica
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_logs import OnLine
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.sync_request import SyncRequest
from kubetrain_components.sync_dataset.sync import STAGE, sync_dataset
from kubetrain_trainer.errors import KubetrainError

STAGING = Path("/staging")
PRUNE_STAGE = "prune_dataset"
PRUNE_START_SECONDS = 300


def sync_on_cluster(
    parameters: RunParameters,
    request: SyncRequest,
    backend: JobBackend,
    claims: Claims,
    on_line: OnLine,
) -> dict[str, Any]:
    """What the transfer did, and under "claim" and "sub_path" what training pods mount.

    Raises:
        InvalidSetting: before anything is made, where a parameter or claim cannot be used.
        KubetrainError: where the version cannot be brought, or not be exposed.
    """

    def say(sentence: str) -> None:
        on_line(LogLine(STAGE, sentence))

    parameters.check()
    storage = parameters.storage
    for wanted in wanted_claims(parameters):
        ensure_claim(wanted, claims, say)
    check_exposure(storage.exposure_of(request.source), storage.staging_claim, claims)
    request = replace(request, mounts=run_mounts(parameters))
    report = sync_dataset(parameters, request, STAGING, backend, on_line)
    wanted_exposure = storage.exposure_of(request.source, report["digest"], report["bytes"])
    exposure = expose_version(wanted_exposure, storage.staging_claim, claims, say, storage.expose_seconds)
    try:
        _prune(exposure, request, storage, report, backend, claims, on_line)
    except KubetrainError as error:  # the run has what it needs
        say(f"not all was pruned that might be: {error}")
    return {**report, "exposure": exposure.mode.value, "claim": exposure.claim, "sub_path": exposure.sub_path}


def wanted_claims(parameters: RunParameters) -> list[WantedClaim]:
    """A run that trains nothing has no output."""
    storage = parameters.storage
    return [storage.staging, storage.output] if parameters.framework else [storage.staging]


def run_mounts(parameters: RunParameters) -> tuple[ClaimMount, ...]:
    staging = ClaimMount(claim=parameters.storage.staging_claim, path=str(STAGING))
    output = ClaimMount(claim=parameters.storage.output_claim, path=OUTPUT_PATH)
    return (staging, output) if parameters.framework else (staging,)


def _prune(
    exposure: Exposure,
    request: SyncRequest,
    storage: Storage,
    report: dict[str, Any],
    backend: JobBackend,
    claims: Claims,
    on_line: OnLine,
) -> None:
    def say(sentence: str) -> None:
        on_line(LogLine(STAGE, sentence))

    limits = {"keep": storage.keep_versions, "current": report["digest"]}
    prune_claims(claims, **limits, say=say)
    prune_snapshots(claims, **limits, say=say)
    if report["versions"] > storage.keep_versions and (in_use := _paths_in_use(exposure, claims, say)) is not None:
        run_job(prune_job(request, storage, report["digest"], in_use), backend, on_line)


def _paths_in_use(exposure: Exposure, claims: Claims, say: Say) -> list[str] | None:
    """The paths on the staging volume that anything may see; None where that may be all."""
    if exposure.mode is ExposureMode.STATIC:
        return None  # who else sees the administrator's storage nobody knows
    paths = dict[str, str]()
    for use in [*uses_now(claims, datetime.now(UTC)), *uses_of(claims.all(SNAPSHOT))]:
        if use.claim == exposure.storage.staging_claim:
            paths[use.sub_path] = use.by
        elif use.digest:
            paths[version_path(use.digest)] = use.by
    if "" in paths:
        say(f"no versions are pruned: {paths['']} sees all of {exposure.storage.staging_claim}")
        return None
    return sorted(paths)


def prune_job(request: SyncRequest, storage: Storage, current: str, in_use: list[str]) -> Job:
    """A job of its own: it alone has the volume, and by its time uses are known anew."""
    command = ["python", "-m", "kubetrain_components.sync_dataset.prune_versions", "--staging", str(STAGING)]
    command += ["--keep", str(storage.keep_versions), "--current", current]
    command += [part for path in in_use for part in ("--in-use", path)]
    return Job(
        identity=JobIdentity(pipeline=request.pipeline, stage=PRUNE_STAGE, run_id=request.run_id),
        kind=JobKind.BATCH_JOB,
        replicas=(Replica(role="Prune", count=1, command=tuple(command), env=UNBUFFERED),),
        backoff_limit=3,
        # The run waits for it, and can do without.
        placement=replace(request.placement, start_seconds=min(request.placement.start_seconds, PRUNE_START_SECONDS)),
        mounts=(ClaimMount(claim=storage.staging_claim, path=str(STAGING)),),
    )
