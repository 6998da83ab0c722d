"""Create, replace, list and delete schedules."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kubetrain_pipelines.kubeflow.cron_zone import describe_cron_zone
from kubetrain_pipelines.kubeflow.find_schedules import (
    chosen,
    describe_all,
    is_enabled,
    is_ours,
    pipeline_of,
    schedules,
)
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message
from kubetrain_pipelines.kubeflow.replace_schedule import delete_schedule, replace_schedule
from kubetrain_pipelines.kubeflow.run import titles_of
from kubetrain_pipelines.kubeflow.submit import RunOptions, SubmittedRun, file_of, prepare_run, start_and_say
from kubetrain_pipelines.kubeflow.trigger import describe_trigger, make_trigger
from kubetrain_pipelines.requests.say import Say
from kubetrain_trainer.errors import InvalidSetting

MAX_CONCURRENCY = 10
"""The server's limit."""
OF_RUNS = ("pipeline_version_reference", "pipeline_spec", "runtime_config", "experiment_id", "service_account")
"""The fields that a schedule shares with its runs."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """When the runs of a schedule start."""

    cron: str = ""
    every: str = ""
    max_concurrency: int = 1

    def __post_init__(self) -> None:
        limit = self.max_concurrency
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_CONCURRENCY:
            raise InvalidSetting(f"max_concurrency must be a number from 1 to {MAX_CONCURRENCY}, not {limit!r}")


@dataclass(frozen=True, kw_only=True)
class ListedSchedule:
    message: Message
    note: str
    """A note on something unusual; may be empty."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "schedule_id": self.message["recurring_run_id"],
            "name": self.message["display_name"],
            "trigger": self.message.get("trigger"),
            "max_concurrency": int(self.message.get("max_concurrency", 1)),
            "is_enabled": is_enabled(self.message),
            "note": self.note,
        }


def create_schedule(api: KfpApi, run: RunOptions, timing: Timing, say: Say) -> Message:
    """Create a schedule, or replace the one of this name."""
    created = put_schedule(api, run, timing, say)
    if timing.cron:
        say(describe_cron_zone())
    return created


def put_schedule(api: KfpApi, run: RunOptions, timing: Timing, say: Say, digest: str = "") -> Message:
    trigger = make_trigger(timing.cron, timing.every)
    asked = run.read()
    file = file_of(asked)
    wanted = {
        **prepare_run(api, file, asked, run, say),
        "display_name": run.name or file.name,
        "trigger": trigger,
        "max_concurrency": str(timing.max_concurrency),
        "no_catchup": True,
    }
    enabled = f"schedule '{wanted['display_name']}' is enabled: {describe_trigger(wanted)}"
    done = replace_schedule(api, wanted, digest=digest, on_enabled=lambda: say(enabled))
    if done.replaced:
        say(f"replaced {describe_all(api, done.replaced)}")
    for leftover in done.leftovers:
        say(f"warning: {leftover}")
    return done.created


def list_schedules(api: KfpApi) -> list[ListedSchedule]:
    """Return all schedules by name, the enabled ones first."""
    found = sorted(schedules(api), key=lambda schedule: (schedule["display_name"], not is_enabled(schedule)))
    return [ListedSchedule(message=item, note=_note(item, found)) for item in found]


def run_schedule(api: KfpApi, wanted: str, say: Say) -> SubmittedRun:
    """Start a run now of what a schedule runs; of several with this name, of the enabled one."""
    found = max(chosen(api, wanted), key=is_enabled)
    source = {name: found[name] for name in OF_RUNS if name in found}
    name = f"{found['display_name']} {datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
    run_id = start_and_say(api, source, name, f"schedule '{found['display_name']}'", say)
    return SubmittedRun(id=run_id, name=name, titles=titles_of(api, found))


def delete_schedules(api: KfpApi, wanted: str, say: Say) -> None:
    """Delete the schedules that a name or an ID means. Runs that they started continue."""
    for item in chosen(api, wanted):
        delete_schedule(api, item)
    say(f"schedule '{wanted}' is deleted; runs that it started continue")


def _note(schedule: Message, found: Sequence[Message]) -> str:
    if not is_ours(schedule):
        return "not made by kubetrain"
    same = [item for item in found if _is_same(item, schedule)]
    return "several have this name: schedule it again" if len(same) > 1 else ""


def _is_same(one: Message, other: Message) -> bool:
    return is_ours(one) and (one["display_name"], pipeline_of(one)) == (other["display_name"], pipeline_of(other))
