"""Delete the exposed PVCs that are no longer needed, with the snapshots that they were restored from."""

from datetime import UTC, datetime

from kubetrain_components.expose_dataset.claims import CLAIM, SNAPSHOT, Claims, Say
from kubetrain_components.expose_dataset.expose import is_exposed
from kubetrain_components.expose_dataset.prune import (
    Prunable,
    PrunePlan,
    Use,
    exposed_claims,
    orphaned_snapshots,
    plan_pruning,
    uses_of,
)


def prune_claims(claims: Claims, *, keep: int, current: str, say: Say) -> None:
    """Delete exposed PVCs, except those that a run starts to use in the meantime.

    Raises:
        KubetrainError: if our account may not list the users of PVCs; then nothing is deleted.
    """
    now = datetime.now(UTC)
    items = exposed_claims(claims.all(CLAIM))
    _carry_out(plan_pruning(items, uses_now(claims, now), keep=keep, current=current, now=now), claims, say)


def prune_snapshots(claims: Claims, *, keep: int, current: str, say: Say) -> None:
    """Delete snapshots whose PVCs are gone or were never created."""
    snapshots = claims.all(SNAPSHOT)
    items = orphaned_snapshots(snapshots, claims.all(CLAIM))
    plan = plan_pruning(items, uses_of(snapshots), keep=keep, current=current, now=datetime.now(UTC))
    _carry_out(plan, claims, say)


def uses_now(claims: Claims, now: datetime) -> list[Use]:
    return uses_of([*claims.all(CLAIM), *claims.users()], now)


def _carry_out(plan: PrunePlan, claims: Claims, say: Say) -> None:
    for decision in plan.decisions:
        if decision.deletes and _delete(decision.item, claims):
            say(str(decision))


def _delete(item: Prunable, claims: Claims) -> bool:
    """Delete the PVC before its snapshot, which it needs until it is filled."""
    if item.kind == "snapshot":
        return claims.delete(SNAPSHOT, item.name, item.preconditions)
    is_deleted = claims.delete(CLAIM, item.name, item.preconditions)
    if is_deleted and item.snapshot and (found := claims.find(SNAPSHOT, item.snapshot)) and is_exposed(found):
        claims.delete(SNAPSHOT, item.snapshot, found["metadata"])
    return is_deleted
