"""Have training pods see a dataset version read-only. Killed at any moment and run again, it ends the same.

Only after the transfer's pod has ended: what is written later may or may not be in a copy of the volume.
"""

from datetime import UTC, datetime

from kubetrain_components.expose_dataset.claim_reuse import MAKE_ROOM, Decision, Verdict, judge_claims, last_used_patch
from kubetrain_components.expose_dataset.claims import CLAIM, SNAPSHOT, Claims
from kubetrain_components.expose_dataset.expose import (
    Exposure,
    ExposureMode,
    ExposureRequest,
    StorageFacts,
    is_exposed,
    plan_exposure,
)
from kubetrain_components.expose_dataset.waiting import Say, Waiting
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.errors import KubetrainError

PATIENCE_SECONDS = 3600.0
"""A clone of a large volume takes its driver as long as a copy does."""


def storage_facts(staging_claim: str, claims: Claims) -> StorageFacts:
    """
    Raises:
        KubetrainError: where there is no such claim.
    """
    claim = claims.find(CLAIM, staging_claim)
    if claim is None:
        raise KubetrainError(f"the staging claim {staging_claim} is gone: start the run again, which makes it anew")
    class_name = claim["spec"].get("storageClassName")
    storage_class = claims.storage_class(class_name) if class_name else None
    return StorageFacts.read(claim, storage_class, has_snapshots=claims.has_snapshots())


def check_exposure(request: ExposureRequest, staging_claim: str, claims: Claims) -> None:
    """What cannot work is better said before a long transfer.

    Raises:
        KubetrainError: as expose_version does, as far as that can be known before there is the version.
    """
    exposure = plan_exposure(request, storage_facts(staging_claim, claims))
    if exposure.mode is ExposureMode.STATIC and (decision := _look(exposure, claims)[1]).verdict is Verdict.REFUSE:
        raise KubetrainError(decision.sentence)


def expose_version(
    request: ExposureRequest,
    staging_claim: str,
    claims: Claims,
    say: Say,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Exposure:
    """The exposure of this version, whose claim is there for pods to mount.

    Raises:
        InvalidSetting: where it cannot be exposed so.
        KubetrainError: where the claim under its name is another's, or is not filled in time.
    """
    exposure = plan_exposure(request, storage_facts(staging_claim, claims))
    say(str(exposure))
    remedy = f"look at `kubectl describe pvc {exposure.claim}`, or choose another exposure"
    waiting = Waiting(say, patience_seconds, remedy)
    while (sentence := _advance(exposure, claims, say)) is not None:
        waiting.poll(sentence)
    return exposure


def _advance(exposure: Exposure, claims: Claims, say: Say) -> str | None:
    """Do what can be done now; what there is to wait for then, or None where pods may mount the claim."""
    found, decision = _look(exposure, claims)
    if decision.verdict is Verdict.CREATE:
        obstacle = _make(exposure, claims)
        found, decision = (None, obstacle) if obstacle else _look(exposure, claims)
    if decision.verdict is Verdict.REFUSE:
        raise KubetrainError(decision.sentence)
    if decision.verdict is Verdict.REUSE and _is_taken(exposure, found, claims):
        say(decision.sentence)
        return None
    complaints = claims.warnings(exposure.claim) if decision.verdict is Verdict.WAIT else []
    return f"{decision.sentence} ({complaints[-1]})" if complaints else decision.sentence


def _look(exposure: Exposure, claims: Claims) -> tuple[Manifest | None, Decision]:
    found = claims.find(CLAIM, exposure.claim)
    return found, judge_claims(exposure, [found] if found else [])


def _is_taken(exposure: Exposure, found: Manifest | None, claims: Claims) -> bool:
    """Note the use of a claim of ours: from then on pruning by others leaves it alone, if it has not come before."""
    if not exposure.makes_claim or found is None:
        return True
    noted = _note_use(found, claims)
    return noted is not None and not noted["metadata"].get("deletionTimestamp")


def _make(exposure: Exposure, claims: Claims) -> Decision | None:
    """Make what is missing, in order; what is in the way of that, or None."""
    for manifest in exposure.manifests():
        claims.create(manifest)
        if manifest["kind"] == SNAPSHOT and (obstacle := _obstacle(exposure, manifest, claims)) is not None:
            return obstacle
    return None


def _obstacle(exposure: Exposure, wanted: Manifest, claims: Claims) -> Decision | None:
    """A snapshot that is not the wanted one; a launcher that was killed may have left that."""
    found = claims.find(SNAPSHOT, exposure.claim)
    name = f"snapshot {exposure.claim}"
    if found is not None and (not is_exposed(found) or found["spec"]["source"] != wanted["spec"]["source"]):
        return Decision(Verdict.REFUSE, f"{name} was not made by kubetrain for this version: {MAKE_ROOM}")
    noted = _note_use(found, claims) if found else None
    if noted is None or noted["metadata"].get("deletionTimestamp"):
        return Decision(Verdict.WAIT, f"{name} is being deleted: it can be made again then")
    return None


def _note_use(found: Manifest, claims: Claims) -> Manifest | None:
    return claims.annotate(found, last_used_patch(datetime.now(UTC))["metadata"]["annotations"])
