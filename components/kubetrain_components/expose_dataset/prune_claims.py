"""Delete the exposed claims that nobody needs any more, with the snapshots they were made from."""

from datetime import UTC, datetime

from kubetrain_components.expose_dataset.claims import CLAIM, SNAPSHOT, Claims
from kubetrain_components.expose_dataset.expose import is_exposed
from kubetrain_components.expose_dataset.prune import (
    Fate,
    PrunePlan,
    Use,
    exposed_claims,
    orphaned_snapshots,
    plan_pruning,
    uses_of,
)
from kubetrain_components.expose_dataset.waiting import Say


def prune_claims(claims: Claims, *, keep: int, current: str, say: Say) -> PrunePlan:
    """What is kept and what was to be deleted; what a run took meanwhile stays, whatever the plan says.

    Raises:
        KubetrainError: where our account may not know who uses claims: then nothing is deleted.
    """
    now = datetime.now(UTC)
    items = exposed_claims(claims.all(CLAIM))
    plan = plan_pruning(items, uses_now(claims, now), keep=keep, current=current, now=now)
    _carry_out(plan, claims, say)
    return plan


def prune_snapshots(claims: Claims, *, keep: int, current: str, say: Say) -> PrunePlan:
    """Those whose claims are gone already, or were never made."""
    snapshots = claims.all(SNAPSHOT)
    items = orphaned_snapshots(snapshots, claims.all(CLAIM))
    plan = plan_pruning(items, uses_of(snapshots), keep=keep, current=current, now=datetime.now(UTC))
    _carry_out(plan, claims, say)
    return plan


def uses_now(claims: Claims, now: datetime) -> list[Use]:
    return uses_of([*claims.all(CLAIM), *claims.users()], now)


def _carry_out(plan: PrunePlan, claims: Claims, say: Say) -> None:
    for fate in plan.fates:
        if fate.is_deleted and _delete(fate, claims):
            say(str(fate))


def _delete(fate: Fate, claims: Claims) -> bool:
    """The claim first: without its snapshot one that is not filled yet would never be."""
    item = fate.item
    if item.kind == "snapshot":
        return claims.delete(SNAPSHOT, item.name, item.preconditions)
    is_deleted = claims.delete(CLAIM, item.name, item.preconditions)
    if is_deleted and item.snapshot and (found := claims.find(SNAPSHOT, item.snapshot)) and is_exposed(found):
        claims.delete(SNAPSHOT, item.snapshot, found["metadata"])
    return is_deleted
