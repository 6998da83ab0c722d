"""Delete the exposed claims that nobody needs any more, with the snapshots they were made from."""

from datetime import UTC, datetime

from kubetrain_components.sync_dataset.claims import CLAIM, SNAPSHOT, Claims
from kubetrain_components.sync_dataset.expose import is_exposed
from kubetrain_components.sync_dataset.prune import (
    Fate,
    PrunePlan,
    Use,
    exposed_claims,
    orphaned_snapshots,
    plan_pruning,
    uses_of,
)
from kubetrain_components.sync_dataset.waiting import Say


def prune_claims(claims: Claims, *, keep: int, current: str, say: Say) -> PrunePlan:
    """What is kept and what was to be deleted; what a run took meanwhile stays, whatever the plan says.

    Raises:
        KubetrainError: where our account may not know who uses claims: then nothing is deleted.
    """
    there = claims.all(CLAIM)
    snapshots = claims.all(SNAPSHOT) if claims.has_snapshots() else []
    items = [*exposed_claims(there), *orphaned_snapshots(snapshots, there)]
    plan = plan_pruning(items, uses_now(claims), keep=keep, current=current, now=datetime.now(UTC))
    for fate in plan.fates:
        if fate.is_deleted and _delete(fate, claims):
            say(str(fate))
    return plan


def uses_now(claims: Claims) -> list[Use]:
    snapshots = claims.all(SNAPSHOT) if claims.has_snapshots() else []
    return uses_of([*claims.all(CLAIM), *snapshots, *claims.users()])


def _delete(fate: Fate, claims: Claims) -> bool:
    """The claim first: without its snapshot one that is not filled yet would never be."""
    item = fate.item
    if item.kind == "snapshot":
        return claims.delete(SNAPSHOT, item.name, item.preconditions)
    is_deleted = claims.delete(CLAIM, item.name, item.preconditions)
    if is_deleted and item.snapshot and (found := claims.find(SNAPSHOT, item.snapshot)) and is_exposed(found):
        claims.delete(SNAPSHOT, item.snapshot, found["metadata"])
    return is_deleted
