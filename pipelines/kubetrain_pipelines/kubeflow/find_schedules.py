"""Find schedules, and tell those that kubetrain made from those of others, which may have the same name."""

from collections.abc import Sequence
from contextlib import suppress

from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message, equals
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError, NotFound
from kubetrain_pipelines.kubeflow.run import RUN_ID
from kubetrain_pipelines.kubeflow.trigger import describe_trigger
from kubetrain_trainer.errors import did_you_mean

PATH = "/recurringruns"
MARK = "scheduled by kubetrain"
APPLIED = "applied "
WHERE_LISTED = (
    "`kubetrain schedule list` (in Python: `kubetrain.schedules()`) lists them; replaced schedules have a new ID"
)


class NotOurSchedule(KfpError):
    """A schedule of this name belongs to another pipeline, or was made by other means."""


def schedules(api: KfpApi, name: str = "") -> list[Message]:
    """Return all schedules, or those with this name, newest first."""
    query = {"filter": equals("display_name", name)} if name else {}
    namespace = api.connection.namespace
    found = api.list_all("recurringRuns", PATH, namespace=namespace, sort_by="created_at desc", **query)
    return [item for item in found if name in ("", item["display_name"])]  # the database ignores case


def is_enabled(schedule: Message) -> bool:
    return bool(schedule.get("mode") == "ENABLE")


def is_ours(schedule: Message) -> bool:
    return str(schedule.get("description", "")).startswith(MARK)


def applied(schedule: Message) -> str:
    """Return the digest of what `schedule apply` made it from; empty if it was made otherwise."""
    return str(schedule.get("description", "")).partition(APPLIED)[2] if is_ours(schedule) else ""


def pipeline_of(schedule: Message) -> str:
    return str(schedule.get("pipeline_version_reference", {}).get("pipeline_id", ""))


def path_of(schedule: Message) -> str:
    return f"{PATH}/{schedule['recurring_run_id']}"


def replaceable(api: KfpApi, wanted: Message) -> list[Message]:
    """Return the schedules that a new one replaces: those of its name that kubetrain made for the same pipeline.

    Raises:
        NotOurSchedule: if there are others of the name.
    """
    found = schedules(api, wanted["display_name"])
    others = [item for item in found if not is_ours(item) or pipeline_of(item) != pipeline_of(wanted)]
    if others:
        raise NotOurSchedule(
            f"another schedule is named '{wanted['display_name']}': {describe_all(api, others)}; choose another name, "
            "or delete that one by its ID"
        )
    return found


def chosen(api: KfpApi, wanted: str) -> list[Message]:
    """Return the schedules that a name or an ID means: of a name, those that kubetrain made for one pipeline.

    Raises:
        NotFound: if there are none.
        NotOurSchedule: if it is not clear which one is meant.
    """
    if RUN_ID.fullmatch(wanted):
        return [api.get_by_id(PATH, wanted, f"schedule '{wanted}' does not exist: {WHERE_LISTED}")]
    found = _named(api, wanted)
    ours = [item for item in found if is_ours(item)]
    if len(ours) == len(found) and len({pipeline_of(item) for item in ours}) == 1:
        return found
    raise NotOurSchedule(f"'{wanted}' may mean {describe_all(api, found)}: give the ID of one")


def describe_all(api: KfpApi, found: Sequence[Message]) -> str:
    return ", ".join(f"{item['recurring_run_id']} ({_details(api, item)})" for item in found)


def _details(api: KfpApi, schedule: Message) -> str:
    parts = [
        f"pipeline {_pipeline_name(api, schedule)}",
        describe_trigger(schedule),
        "enabled" if is_enabled(schedule) else "paused",
        f"created {schedule.get('created_at', 'some time ago')}",
        *([] if is_ours(schedule) else ["not by kubetrain"]),
    ]
    return ", ".join(parts)


def _pipeline_name(api: KfpApi, schedule: Message) -> str:
    pipeline = pipeline_of(schedule)
    with suppress(KfpError):
        return str(api.get(f"/pipelines/{pipeline}")["display_name"]) if pipeline else "without a name"
    return pipeline


def _named(api: KfpApi, name: str) -> list[Message]:
    if found := schedules(api, name):
        return found
    names = {schedule["display_name"] for schedule in schedules(api)}
    raise NotFound(f"schedule '{name}' does not exist: {did_you_mean(name, names) if names else 'there are none'}")
