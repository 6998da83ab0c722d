"""Replace a schedule, which Kubeflow Pipelines cannot update. Two must never be enabled at once.

    create the new one, disabled → disable the old → enable the new → delete the old

If this is interrupted at any point, at most one is enabled, and the next replacement cleans up. If a request fails, the
steps so far are undone.
"""

import secrets
from collections.abc import Iterator
from contextlib import suppress

from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message, equals
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError, NotFound, Unanswered

PATH = "/recurringruns"
ENABLED = "ENABLE"


class ConcurrentReplacement(KfpError):
    """Someone else replaces the schedule of this name at the same time."""


def schedules(api: KfpApi, name: str = "") -> list[Message]:
    """Return all schedules, or those with this name, newest first."""
    query = {"filter": equals("display_name", name)} if name else {}
    namespace = api.connection.namespace
    return list(api.list_all("recurringRuns", PATH, namespace=namespace, sort_by="created_at desc", **query))


def is_enabled(schedule: Message) -> bool:
    return bool(schedule.get("mode") == ENABLED)


def replace_schedule(api: KfpApi, wanted: Message) -> tuple[Message, list[str]]:
    """Return the new schedule, and one sentence for each old one that could not be deleted.

    Raises:
        KfpError: if it could not be replaced; the message says whether everything was undone.
    """
    with interrupts_deferred():
        before = schedules(api, wanted["display_name"])
        created = _create_disabled(api, wanted)
        old = [each for each in before if is_enabled(each)]
        try:
            _check_alone(api, created, before)
            for each in old:
                set_enabled(api, each, False)
            set_enabled(api, created, True)
        except KfpError as error:
            raise _undone(api, created, old, error) from error
        return created, list(_delete_all(api, before))


def set_enabled(api: KfpApi, schedule: Message, wanted: bool) -> None:
    """Enable or disable a schedule. If the answer is lost, check the state and try once more."""
    path = _path(schedule)
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
    """Delete a schedule but not its runs. By default, the server would also delete those still running."""
    with suppress(NotFound):
        api.delete(_path(schedule), propagation_policy="ORPHAN")


def _create_disabled(api: KfpApi, wanted: Message) -> Message:
    mark = f"scheduled by kubetrain, {secrets.token_hex(8)}"
    try:
        return api.post(PATH, {**wanted, "mode": "DISABLE", "description": mark})
    except Unanswered:
        if found := api.find("recurringRuns", PATH, "description", mark, namespace=api.connection.namespace):
            return found
        raise


def _check_alone(api: KfpApi, created: Message, before: list[Message]) -> None:
    known = {_path(each) for each in (created, *before)}
    if any(_path(each) not in known for each in schedules(api, created["display_name"])):
        raise ConcurrentReplacement(
            f"someone else is replacing schedule '{created['display_name']}' at the same time: try again"
        )


def _undone(api: KfpApi, created: Message, old: list[Message], error: KfpError) -> KfpError:
    """Undo the replacement and return the error to raise. The old one is enabled only after the new one is disabled."""
    try:
        with suppress(NotFound):
            set_enabled(api, created, False)
        for each in old[:1]:
            set_enabled(api, each, True)
        delete_schedule(api, created)
    except KfpError as undo_error:
        return type(error)(
            f"{error}; undoing the replacement failed too ({undo_error}): check `kubetrain schedule --list`, then run "
            "the same command again"
        )
    return type(error)(f"{error}; the replacement was undone")


def _delete_all(api: KfpApi, leftovers: list[Message]) -> Iterator[str]:
    for each in leftovers:
        try:
            delete_schedule(api, each)
        except KfpError as error:
            yield f"the old schedule {each['recurring_run_id']} is disabled, but could not be deleted ({error})"


def _path(schedule: Message) -> str:
    return f"{PATH}/{schedule['recurring_run_id']}"
