"""Putting a schedule in the place of one: Kubeflow Pipelines cannot change one, and nothing must be run by both.

    make the new one, disabled → disable the old → enable the new → delete the old

Whenever this is cut off, at most one is enabled, and the next replacement tidies up. Where a call fails, what was done
is undone.
"""

import secrets
from collections.abc import Iterator
from contextlib import suppress

from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message, named
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError, NotFound, Unanswered

PATH = "/recurringruns"
ENABLED = "ENABLE"


class ReplacedByOthers(KfpError):
    """Somebody else puts a schedule of this name in place at the same time."""


def schedules(api: KfpApi, name: str = "") -> list[Message]:
    """All of them, or those of a name: the last made comes first."""
    query = {"filter": named("display_name", name)} if name else {}
    namespace = api.connection.namespace
    return list(api.all_of("recurringRuns", PATH, namespace=namespace, sort_by="created_at desc", **query))


def is_enabled(schedule: Message) -> bool:
    return bool(schedule.get("mode") == ENABLED)


def replace_schedule(api: KfpApi, wanted: Message) -> tuple[Message, list[str]]:
    """The new schedule, and what is left to tidy up.

    Raises:
        KfpError: where it could not be put in place; then all is as before, or the sentence says what is not.
    """
    with interrupts_deferred():
        before = schedules(api, wanted["display_name"])
        made = _create_disabled(api, wanted)
        old = [each for each in before if is_enabled(each)]
        try:
            _check_alone(api, made, before)
            for each in old:
                set_enabled(api, each, False)
            set_enabled(api, made, True)
        except KfpError as error:
            raise _undone(api, made, old, error) from error
        return made, list(_delete_all(api, before))


def set_enabled(api: KfpApi, schedule: Message, wanted: bool) -> None:
    """Twice does no harm, so where the answer is lost it is looked at, and done again."""
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
    """But not the runs that it started: by default those that go on would end with it."""
    with suppress(NotFound):
        api.delete(_path(schedule), propagation_policy="ORPHAN")


def _create_disabled(api: KfpApi, wanted: Message) -> Message:
    mark = f"scheduled by kubetrain, {secrets.token_hex(8)}"
    try:
        return api.post(PATH, {**wanted, "mode": "DISABLE", "description": mark})
    except Unanswered:
        query = {"namespace": api.connection.namespace, "filter": named("description", mark)}
        if found := next(api.all_of("recurringRuns", PATH, **query), None):
            return found
        raise


def _check_alone(api: KfpApi, made: Message, before: list[Message]) -> None:
    known = {_path(each) for each in (made, *before)}
    if any(_path(each) not in known for each in schedules(api, made["display_name"])):
        raise ReplacedByOthers(f"somebody else puts a schedule '{made['display_name']}' in place just now: try again")


def _undone(api: KfpApi, made: Message, old: list[Message], error: KfpError) -> KfpError:
    """The old one is not enabled again before it is certain that the new one is not."""
    try:
        with suppress(NotFound):
            set_enabled(api, made, False)
        for each in old[:1]:
            set_enabled(api, each, True)
        delete_schedule(api, made)
    except KfpError as trouble:
        return type(error)(
            f"{error}; undoing that failed too ({trouble}): see `kubetrain schedule --list`, and run the same again"
        )
    return type(error)(f"{error}; all is as it was before")


def _delete_all(api: KfpApi, leftovers: list[Message]) -> Iterator[str]:
    for each in leftovers:
        try:
            delete_schedule(api, each)
        except KfpError as trouble:
            yield f"the old schedule {each['recurring_run_id']} is disabled, but could not be deleted ({trouble})"


def _path(schedule: Message) -> str:
    return f"{PATH}/{schedule['recurring_run_id']}"
