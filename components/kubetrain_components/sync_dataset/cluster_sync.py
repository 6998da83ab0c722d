"""The step on a cluster: create PVCs, run the transfer job, expose the version to training pods, prune old versions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from kubetrain_components import OUTPUT_PATH
from kubetrain_components.expose_dataset.claims import Claims, Say
from kubetrain_components.expose_dataset.ensure_claim import WantedClaim, ensure_claim, reading_problem
from kubetrain_components.expose_dataset.expose import Exposure, ExposureMode, version_path
from kubetrain_components.expose_dataset.expose_version import check_exposure, expose_version
from kubetrain_components.expose_dataset.prune_claims import prune_claims, uses_now
from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import OWN_PROGRAM, ClaimMount, Job, Replica
from kubetrain_components.jobs.job_logs import OnLine
from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.sync_dataset.sync import STAGE, sync_dataset, transfer_job
from kubetrain_trainer.errors import InvalidSetting, KubetrainError

STAGING = Path("/staging")
PRUNE_STAGE = "prune_dataset"
PRUNE_START_SECONDS = 300


def sync_on_cluster(parameters: RunParameters, backend: JobBackend, claims: Claims, on_line: OnLine) -> dict[str, Any]:
    """Sync the dataset and expose its version; the report's "claim" and "sub_path" name what training pods mount.

    Raises:
        InvalidSetting: before anything is created, if a parameter or PVC cannot be used.
        KubetrainError: if the dataset cannot be synced or its version cannot be exposed.
    """
    say, storage, transfer = _say_on(on_line), parameters.storage, cluster_transfer_job(parameters)
    folder = parameters.data_in_place
    if folder and (problem := reading_problem(folder.claim, claims.find(folder.claim))):
        raise InvalidSetting(f"data.uri: {problem}: name another PVC, or create this one and its data")
    for wanted in wanted_claims(parameters):
        ensure_claim(wanted, claims, say)
    if not parameters.syncs:
        report = sync_dataset(parameters, transfer, backend, on_line)
        return {**report, "claim": folder.claim, "sub_path": folder.path} if folder else report
    check_exposure(storage.exposure_of(parameters.dataset_uri), storage.staging_claim, claims)
    report = sync_dataset(parameters, transfer, backend, on_line)
    wanted_exposure = storage.exposure_of(parameters.dataset_uri, report["digest"], report["bytes"])
    exposure = expose_version(wanted_exposure, storage.staging_claim, claims, say, storage.expose_seconds)
    try:
        _prune(exposure, transfer, storage, report, backend, claims, on_line)
    except KubetrainError as error:  # the run has what it needs
        say(f"pruning was incomplete: {error}")
    return {**report, "exposure": exposure.mode.value, "claim": exposure.claim, "sub_path": exposure.sub_path}


def _say_on(on_line: OnLine) -> Say:
    return lambda sentence: on_line(LogLine(STAGE, sentence))


def wanted_claims(parameters: RunParameters) -> list[WantedClaim]:
    """Return the PVCs that a run needs: for the dataset if it syncs one, for the output if that is not in a store."""
    storage = parameters.storage
    wanted = {storage.staging: parameters.syncs, storage.wanted_output: _has_output(parameters)}
    return [claim for claim, need in wanted.items() if need]


def _has_output(parameters: RunParameters) -> bool:
    return bool(parameters.framework and parameters.storage.mounted_output)


def cluster_transfer_job(parameters: RunParameters) -> Job:
    """Return the transfer job, which also mounts the output PVC to check that the run can write to it."""
    staging = ClaimMount(claim=parameters.storage.staging_claim, path=str(STAGING))
    if folder := parameters.data_in_place:  # the whole volume: kubelets explain badly that a folder is missing
        staging = ClaimMount(claim=folder.claim, path=str(STAGING), read_only=True)
    output = ClaimMount(claim=parameters.storage.output_claim, path=OUTPUT_PATH)
    mounts = {staging: parameters.dataset_uri, output: _has_output(parameters)}
    return transfer_job(parameters, STAGING, Path(OUTPUT_PATH), tuple(mount for mount, need in mounts.items() if need))


def _prune(
    exposure: Exposure,
    transfer: Job,
    storage: Storage,
    report: dict[str, Any],
    backend: JobBackend,
    claims: Claims,
    on_line: OnLine,
) -> None:
    say = _say_on(on_line)
    prune_claims(claims, keep=storage.keep_versions, current=report["digest"], say=say)
    may_prune = report["versions"] > storage.keep_versions or report.get("leftovers")
    if may_prune and (in_use := _paths_in_use(exposure, claims, say)) is not None:
        run_job(prune_job(transfer, storage, report["digest"], in_use), backend, on_line)


def _paths_in_use(exposure: Exposure, claims: Claims, say: Say) -> list[str] | None:
    """Return the paths on the staging volume that may be in use; None if all of them may be."""
    if exposure.mode is ExposureMode.STATIC:
        return None  # it is unknown who else reads the administrator's storage
    paths = dict[str, str]()
    for use in uses_now(claims):
        if use.claim == exposure.storage.staging_claim:
            paths[use.sub_path] = use.by
        elif use.digest:
            paths[version_path(use.digest)] = use.by
    if "" in paths:
        say(f"no versions are pruned: {paths['']} mounts all of {exposure.storage.staging_claim}")
        return None
    return sorted(paths)


def prune_job(transfer: Job, storage: Storage, current: str, in_use: list[str]) -> Job:
    """Return the pruning job; it is not part of the transfer, because what is in use is known only afterwards."""
    command = ["python", "-m", "kubetrain_components.sync_dataset.prune_versions", "--staging", str(STAGING)]
    command += ["--keep", str(storage.keep_versions), "--current", current]
    command += [part for path in in_use for part in ("--in-use", path)]
    # The run waits for it, but does not need it.
    start_seconds = min(transfer.placement.start_seconds, PRUNE_START_SECONDS)
    placement = replace(transfer.placement, start_seconds=start_seconds, queue_seconds=PRUNE_START_SECONDS)
    return replace(
        transfer,
        identity=replace(transfer.identity, stage=PRUNE_STAGE),
        replicas=(Replica(role="Prune", count=1, command=tuple(command), env=OWN_PROGRAM),),
        placement=placement,
        mounts=transfer.mounts[:1],
    )
