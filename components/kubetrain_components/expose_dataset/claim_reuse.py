"""Decide whether an existing PVC can serve a dataset version.

The PVC with the exposure's name               | action
does not exist                                 | create; refuse if it isn't ours to create
was not created by kubetrain                   | refuse: never touch it
is being deleted                               | wait until it is gone, then create
has another version, source, mode or size      | refuse: never delete to make room
is unbound, of a class that binds immediately  | wait: it is still being filled
is unbound, of a class that waits for a pod    | reuse: the first pod binds it
is bound                                       | reuse
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from kubetrain_components.expose_dataset.expose import (
    DATASET_LABEL,
    LAST_USED_ANNOTATION,
    Exposure,
    ExposureMode,
    is_exposed,
)
from kubetrain_components.expose_dataset.storage_facts import claim_size, volume_problem
from kubetrain_components.jobs.quantity import whole_amount
from kubetrain_components.manifest import Manifest

MAKE_ROOM = "delete it if it is no longer needed, or set storage.staging_claim to another PVC"


class ClaimAction(StrEnum):
    CREATE = "create"
    REUSE = "reuse"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True)
class ClaimDecision:
    action: ClaimAction
    reason: str


def decide_reuse(exposure: Exposure, found: Manifest | None) -> ClaimDecision:
    """Decide what to do with the PVC of this exposure, following the table above."""
    if found is None:
        return _decide_missing(exposure)
    name = f"PVC {exposure.claim}"
    if exposure.creates_claim and not is_exposed(found):
        return ClaimDecision(ClaimAction.REFUSE, f"{name} was not created by kubetrain: {MAKE_ROOM}")
    if found["metadata"].get("deletionTimestamp"):
        action = ClaimAction.WAIT if exposure.creates_claim else ClaimAction.REFUSE
        return ClaimDecision(action, f"{name} is being deleted: it can be created again once no pod mounts it")
    if (mismatch := next(_mismatches(exposure, found), None)) is not None:
        remedy = MAKE_ROOM if exposure.creates_claim else "name another PVC, or choose another storage.exposure"
        return ClaimDecision(ClaimAction.REFUSE, f"{name} {mismatch}: {remedy}")
    return _decide_by_phase(exposure, (found.get("status") or {}).get("phase", "Unknown"))


def last_used_annotation(now: datetime) -> dict[str, str]:
    """The annotation of a reused PVC; it keeps other runs from pruning the PVC before a job of this run uses it."""
    return {LAST_USED_ANNOTATION: now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}


def _decide_missing(exposure: Exposure) -> ClaimDecision:
    if exposure.creates_claim:
        return ClaimDecision(ClaimAction.CREATE, f"creating PVC {exposure.claim}")
    setting = "static_claim" if exposure.mode is ExposureMode.STATIC else "staging_claim"
    reason = f"this namespace has no PVC {exposure.claim}: create it, or correct storage.{setting}"
    return ClaimDecision(ClaimAction.REFUSE, reason)


def _decide_by_phase(exposure: Exposure, phase: str) -> ClaimDecision:
    name = f"PVC {exposure.claim}"
    if phase == "Bound":
        return ClaimDecision(ClaimAction.REUSE, f"{name} is ready with version {exposure.request.digest}")
    if phase == "Pending" and exposure.creates_claim:
        if exposure.storage.binds_immediately:
            return ClaimDecision(ClaimAction.WAIT, f"{name} is still being filled")
        return ClaimDecision(ClaimAction.REUSE, f"{name} exists and is filled when the first pod mounts it")
    return ClaimDecision(
        ClaimAction.REFUSE,
        f"{name} is {phase}, not Bound: check `kubectl describe pvc {exposure.claim}`, then restore its volume or "
        "delete it",
    )


def _mismatches(exposure: Exposure, claim: Manifest) -> Iterator[str]:
    """Yield how the PVC differs from the one that this exposure needs."""
    spec = claim["spec"]
    modes = spec["accessModes"]
    if problem := volume_problem(spec.get("volumeMode")):
        yield problem
    if not exposure.creates_claim:
        wanted = "ReadWriteMany" if exposure.mode is ExposureMode.SHARED else "ReadOnlyMany"
        if wanted not in modes:
            yield f"is {', '.join(modes)}, not {wanted}"
        return
    if modes != ["ReadOnlyMany"]:
        yield f"is {', '.join(modes)}, not only ReadOnlyMany"
    if (digest := claim["metadata"]["labels"].get(DATASET_LABEL)) != exposure.request.digest:
        yield f"has version {digest}, not {exposure.request.digest}"
    if (origin := _origin(spec.get("dataSource"))) != (wanted := _origin(exposure.data_source)):
        yield f"was created from {origin}, not from {wanted}"
    if whole_amount(size := claim_size(claim)) < exposure.request.bytes:
        yield f"has {size}, less than the {exposure.request.bytes} bytes of the version"


def _origin(data_source: Mapping[str, str] | None) -> str:
    return f"{data_source['kind']} {data_source['name']}" if data_source else "nothing"
