"""Give training pods read-only access to a dataset version. Running it again after a kill has the same result.

Call it only after the transfer's pod has ended: a copy of the volume may miss what is written later.
"""

from datetime import UTC, datetime

from kubetrain_components.expose_dataset.claim_reuse import (
    ClaimAction,
    ClaimDecision,
    decide_reuse,
    last_used_annotation,
)
from kubetrain_components.expose_dataset.claims import Claims, Say, Waiting
from kubetrain_components.expose_dataset.expose import Exposure, ExposureMode, ExposureRequest, plan_exposure
from kubetrain_components.expose_dataset.storage_facts import StorageFacts
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.errors import KubetrainError


def storage_facts(staging_claim: str, claims: Claims) -> StorageFacts:
    """Read from the cluster what the staging PVC and its storage class can do.

    Raises:
        KubetrainError: if the staging PVC does not exist.
    """
    claim = claims.find(staging_claim)
    if claim is None:
        raise KubetrainError(f"the staging PVC {staging_claim} is gone: start the run again to create it")
    class_name = claim["spec"].get("storageClassName")
    storage_class = claims.storage_class(class_name) if class_name else None
    return StorageFacts.read(claim, storage_class)


def check_exposure(request: ExposureRequest, staging_claim: str, claims: Claims) -> None:
    """Check before a long transfer that the version can be exposed, as far as is known without the version.

    Raises:
        InvalidSetting: if the version cannot be exposed in the requested mode.
        KubetrainError: if the staging PVC does not exist, or the static PVC cannot be used.
    """
    exposure = plan_exposure(request, storage_facts(staging_claim, claims))
    if exposure.mode is ExposureMode.STATIC:
        _, decision = _look(exposure, claims)
        if decision.action is ClaimAction.REFUSE:
            raise KubetrainError(decision.reason)


def expose_version(
    request: ExposureRequest, staging_claim: str, claims: Claims, say: Say, timeout_seconds: float
) -> Exposure:
    """Expose this version and return once pods can mount its PVC.

    Raises:
        InvalidSetting: if the version cannot be exposed in the requested mode.
        KubetrainError: if another PVC has the name, or the PVC is not filled before the timeout.
    """
    exposure = plan_exposure(request, storage_facts(staging_claim, claims))
    say(str(exposure))
    remedy = (
        f"check `kubectl describe pvc {exposure.claim}`, raise storage.expose_seconds, or choose another "
        "storage.exposure"
    )
    waiting = Waiting(say, timeout_seconds, remedy)
    while (reason := _advance(exposure, claims, say)) is not None:
        waiting.poll(reason)
    return exposure


def _advance(exposure: Exposure, claims: Claims, say: Say) -> str | None:
    """Take the next step; return why to wait for another one, or None once pods can mount the PVC."""
    found, decision = _look(exposure, claims)
    if decision.action is ClaimAction.CREATE:
        claims.create(exposure.manifest())
        found, decision = _look(exposure, claims)
    if decision.action is ClaimAction.REFUSE:
        raise KubetrainError(decision.reason)
    if decision.action is ClaimAction.REUSE and _is_reserved(exposure, found, claims):
        say(decision.reason)
        return None
    warnings = claims.warnings(exposure.claim) if decision.action is ClaimAction.WAIT else []
    return f"{decision.reason} ({warnings[-1]})" if warnings else decision.reason


def _look(exposure: Exposure, claims: Claims) -> tuple[Manifest | None, ClaimDecision]:
    found = claims.find(exposure.claim)
    return found, decide_reuse(exposure, found)


def _is_reserved(exposure: Exposure, found: Manifest | None, claims: Claims) -> bool:
    """Mark our PVC as used, so that other runs do not prune it; return False if it is being pruned already."""
    if not exposure.creates_claim or found is None:
        return True
    marked = claims.annotate(found, last_used_annotation(datetime.now(UTC)))
    return marked is not None and not marked["metadata"].get("deletionTimestamp")
