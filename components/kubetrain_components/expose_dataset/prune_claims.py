"""Delete the exposed PVCs that nothing needs any more."""

from datetime import UTC, datetime

from kubetrain_components.expose_dataset.claims import Claims, Say
from kubetrain_components.expose_dataset.prune import Use, exposed_claims, plan_pruning, uses_of


def prune_claims(claims: Claims, *, keep: int, current: str, say: Say) -> None:
    """Delete exposed PVCs, except those that a run starts to use in the meantime.

    Raises:
        KubetrainError: if our account may not list the users of PVCs; then nothing is deleted.
    """
    items = exposed_claims(claims.all())
    for decision in plan_pruning(items, uses_now(claims), keep=keep, current=current, now=datetime.now(UTC)):
        if decision.deletes and claims.delete(decision.item.name, decision.item.preconditions):
            say(str(decision))


def uses_now(claims: Claims) -> list[Use]:
    return uses_of([*claims.all(), *claims.users()], datetime.now(UTC))
