"""Create, replace, list, pause, resume and delete schedules."""

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

from kubetrain_pipelines.kubeflow.compiled_file import CompiledFile
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
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError
from kubetrain_pipelines.kubeflow.replace_schedule import delete_schedule, ends_runs, replace_schedule, set_enabled
from kubetrain_pipelines.kubeflow.submit import RunOptions, prepare_run
from kubetrain_pipelines.kubeflow.trigger import describe_trigger, make_trigger
from kubetrain_pipelines.say import Say
from kubetrain_trainer.errors import InvalidSetting

MAX_CONCURRENCY = 10
"""The server's limit."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """When the runs of a schedule start."""

    cron: str = ""
    every: str = ""
    max_concurrency: int = 1
    catchup: bool = False

    def __post_init__(self) -> None:
        limit = self.max_concurrency
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_CONCURRENCY:
            raise InvalidSetting(f"max_concurrency must be a number from 1 to {MAX_CONCURRENCY}, not {limit!r}")
        if not isinstance(self.catchup, bool):
            raise InvalidSetting(f"catchup must be true or false, not {self.catchup!r}")


@dataclass(frozen=True, kw_only=True)
class ListedSchedule:
    message: Message
    note: str
    """A remark on something unusual; may be empty."""


def create_schedule(api: KfpApi, run: RunOptions, timing: Timing, say: Say, *, force: bool) -> Message:
    """Create a schedule, or replace the one of this name.

    Args:
        force: Replace also schedules of this name that others made.
    """
    trigger = make_trigger(timing.cron, timing.every)
    file = CompiledFile.find(run.pipeline)
    wanted = {
        **prepare_run(api, file, run, say),
        "display_name": run.name or file.name,
        "trigger": trigger,
        "max_concurrency": str(timing.max_concurrency),
        "no_catchup": not timing.catchup,
    }
    enabled = f"schedule '{wanted['display_name']}' is enabled: {describe_trigger(wanted)}"
    done = replace_schedule(api, wanted, force=force, on_enabled=lambda: say(enabled))
    if done.replaced:
        say(f"replaced {describe_all(api, done.replaced)}")
    for each in done.leftovers:
        say(f"warning: {each}")
    if timing.cron:
        say(describe_cron_zone())
    return done.created


def list_schedules(api: KfpApi) -> list[ListedSchedule]:
    """Return all schedules by name, the enabled ones first."""
    found = sorted(schedules(api), key=lambda schedule: (schedule["display_name"], not is_enabled(schedule)))
    has_several = len({(each["display_name"], pipeline_of(each)) for each in found}) < len(found)
    keeps_old = has_several and bool(ends_runs(api))
    return [ListedSchedule(message=each, note=_note(each, found, keeps_old=keeps_old)) for each in found]


def pause_schedule(api: KfpApi, wanted: str, say: Say, *, force: bool = False) -> None:
    for each in filter(is_enabled, chosen(api, wanted, force=force)):
        set_enabled(api, each, False)
    say(f"schedule '{wanted}' is paused: resume it with `kubetrain schedule --resume {quote(wanted)}`")


def resume_schedule(api: KfpApi, wanted: str, say: Say, *, force: bool = False) -> None:
    """Enable one schedule of this name, because an interrupted replacement may leave several."""
    found = chosen(api, wanted, force=force)
    if any(map(is_enabled, found)):
        say(f"schedule '{wanted}' is enabled already")
        return
    set_enabled(api, found[0], True)
    missed = "the last one usually starts now" if found[0].get("no_catchup") else "they usually start now, one by one"
    say(f"schedule '{wanted}' is enabled; if it missed runs, {missed}")


def delete_schedules(api: KfpApi, wanted: str, say: Say, *, force: bool) -> None:
    """Delete the schedules that a name or an ID means. Runs that they started continue."""
    found = chosen(api, wanted, force=force)
    if (version := ends_runs(api)) and not force:
        raise KfpError(
            f"Kubeflow Pipelines {version} would end the runs of '{wanted}' with it: pause it instead, or use force"
        )
    for each in found:
        delete_schedule(api, each)
    say(f"schedule '{wanted}' is deleted" + ("" if version else "; runs that it started continue"))


def _note(schedule: Message, found: Sequence[Message], *, keeps_old: bool) -> str:
    """
    Args:
        keeps_old: Replaced schedules stay, disabled, so only enabled ones count as several.
    """
    if not is_ours(schedule):
        return "not made by kubetrain"
    same = [each for each in found if _is_same(each, schedule) and (is_enabled(each) or not keeps_old)]
    return "several have this name: schedule it again" if len(same) > 1 else ""


def _is_same(one: Message, other: Message) -> bool:
    return is_ours(one) and (one["display_name"], pipeline_of(one)) == (other["display_name"], pipeline_of(other))
