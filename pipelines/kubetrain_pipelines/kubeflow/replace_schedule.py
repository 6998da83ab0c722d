"""Replace a schedule, which Kubeflow Pipelines cannot update. Two must never be enabled at once.

    create the new one, disabled → disable the old → enable the new → delete the old

If this is interrupted at any point, at most one is enabled, and the next replacement cleans up. If a request fails, the
steps so far are undone, but of several old ones that were enabled, one is enabled again.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_pipelines.kubeflow.find_schedules import APPLIED, MARK, PATH, is_enabled, path_of, replaceable, schedules
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError, NotFound, Unanswered
from kubetrain_pipelines.kubeflow.server_version import read_health


class ConcurrentReplacement(KfpError):
    """Someone else replaces the schedule of this name at the same time."""


@dataclass(frozen=True, kw_only=True)
class Replacement:
    created: Message
    replaced: list[Message]
    leftovers: list[str]
    """One sentence for each old schedule that is disabled, but was not deleted."""


def replace_schedule(
    api: KfpApi, wanted: Message, *, digest: str = "", on_enabled: Callable[[], object] = lambda: None
) -> Replacement:
    """
    Args:
        digest: That of what `schedule apply` makes it from.
        on_enabled: Is called before an interrupt takes effect.

    Raises:
        KfpError: if it could not be replaced; the message says whether everything was undone.
    """
    before = replaceable(api, wanted)
    with interrupts_deferred("stopping after the schedule is replaced: two must never be enabled at once"):
        created = _create_disabled(api, wanted, digest)
        old = [item for item in before if is_enabled(item)]
        try:
            _check_account(api, created, wanted)
            _check_alone(api, created, before)
            for each in old:
                set_enabled(api, each, False)
            set_enabled(api, created, True)
            on_enabled()
        except KfpError as error:
            raise _undone(api, created, old, error) from error
        leftovers = list(_delete_all(api, before))
        return Replacement(created={**created, "mode": "ENABLE"}, replaced=before, leftovers=leftovers)


def set_enabled(api: KfpApi, schedule: Message, wanted: bool) -> None:
    """Enable or disable a schedule. If the answer is lost, check the state and try once more."""
    path = path_of(schedule)
    for is_last in (False, True):
        try:
            api.post(f"{path}:{'enable' if wanted else 'disable'}")
        except Unanswered:
            if is_enabled(api.get(path)) == wanted:
                return
            if is_last:
                raise
        else:
            return


def delete_schedule(api: KfpApi, schedule: Message) -> None:
    """Delete a schedule but not its runs, which the server would do by default."""
    with suppress(NotFound):
        api.delete(path_of(schedule), propagation_policy="ORPHAN")


def _create_disabled(api: KfpApi, wanted: Message, digest: str) -> Message:
    mark = f"{MARK}, {secrets.token_hex(8)}{digest and f', {APPLIED}{digest}'}"
    try:
        return api.post(PATH, {**wanted, "mode": "DISABLE", "description": mark})
    except Unanswered:
        if found := api.find("recurringRuns", PATH, "description", mark, namespace=api.connection.namespace):
            return found
        raise


def _check_account(api: KfpApi, created: Message, wanted: Message) -> None:
    """Before 2.17, a schedule's runs have the server's default account, which the answer contains."""
    account, actual = wanted.get("service_account", ""), created.get("service_account", "")
    if account and actual and account != actual:
        raise KfpError(
            f"Kubeflow Pipelines {read_health(api).tag} ignores --service-account {account} for schedules, whose runs "
            f"would have '{actual}': upgrade to 2.17, or leave the option out and give '{actual}' the permissions"
        )


def _check_alone(api: KfpApi, created: Message, before: list[Message]) -> None:
    known = {path_of(item) for item in (created, *before)}
    if any(path_of(schedule) not in known for schedule in schedules(api, created["display_name"])):
        raise ConcurrentReplacement(
            f"someone else is replacing schedule '{created['display_name']}' at the same time: try again"
        )


def _undone(api: KfpApi, created: Message, old: list[Message], error: KfpError) -> KfpError:
    """Undo the replacement and return the error to raise. The old one is enabled only after the new one is disabled."""
    try:
        with suppress(NotFound):
            set_enabled(api, created, False)
        for item in old[:1]:
            set_enabled(api, item, True)
        delete_schedule(api, created)
    except KfpError as undo_error:
        return type(error)(
            f"{error}; undoing the replacement failed too ({undo_error}): check `kubetrain schedule list`, then run "
            "the same command again"
        )
    return type(error)(f"{error}; the replacement was undone{_but_disabled(old[1:])}")


def _but_disabled(old: list[Message]) -> str:
    if not old:
        return ""
    names = ", ".join(item["recurring_run_id"] for item in old)
    return (
        f", but {names} stays disabled, because two schedules of one name must not be enabled at once: run the same "
        "command again to replace all of them"
    )


def _delete_all(api: KfpApi, leftovers: list[Message]) -> Iterator[str]:
    for leftover in leftovers:
        try:
            delete_schedule(api, leftover)
        except KfpError as error:
            yield (
                f"the old schedule {leftover['recurring_run_id']} is disabled, but could not be deleted ({error}); the "
                "next `kubetrain schedule create` with this name tries again"
            )
