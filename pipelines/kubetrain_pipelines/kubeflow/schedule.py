"""`kubetrain schedule`: create, replace, list, pause, resume and delete recurring runs."""

from collections.abc import Sequence
from dataclasses import dataclass

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
from kubetrain_trainer.errors import InvalidSetting


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """The options of `kubetrain schedule` apart from those of the runs."""

    cron: str = ""
    every: str = ""
    max_concurrency: int = 1
    catchup: bool = False
    list: bool = False
    pause: str = ""
    resume: str = ""
    delete: str = ""
    force: bool = False

    def check(self, pipeline: str) -> None:
        if sum(map(bool, (pipeline, self.list, self.pause, self.resume, self.delete))) != 1:
            raise InvalidSetting("give exactly one of PIPELINE, --list, --pause NAME, --resume NAME and --delete NAME")


def schedule_and_show(api: KfpApi, run: RunOptions, options: ScheduleOptions) -> None:
    options.check(run.pipeline)
    if options.list:
        _list(api)
    elif options.pause:
        _pause(api, options.pause, force=options.force)
    elif options.resume:
        _resume(api, options.resume, force=options.force)
    elif options.delete:
        _delete(api, options.delete, force=options.force)
    else:
        _create_or_replace(api, run, options)


def _create_or_replace(api: KfpApi, run: RunOptions, options: ScheduleOptions) -> None:
    trigger = make_trigger(options.cron, options.every)
    file = CompiledFile.find(run.pipeline)
    wanted = {
        **prepare_run(api, file, run),
        "display_name": run.name or file.name,
        "trigger": trigger,
        "max_concurrency": str(options.max_concurrency),
        "no_catchup": not options.catchup,
    }
    done = replace_schedule(api, wanted, force=options.force)
    if done.replaced:
        print(f"replaced {describe_all(api, done.replaced)}")
    print(f"schedule '{wanted['display_name']}' is enabled: {describe_trigger(wanted)}")
    for each in done.leftovers:
        print(f"warning: {each}")
    if options.cron:
        print(describe_cron_zone())


def _list(api: KfpApi) -> None:
    found = schedules(api)
    if not found:
        print("no schedules: create one with `kubetrain schedule PIPELINE --cron …`")
        return
    has_several = len({(each["display_name"], pipeline_of(each)) for each in found}) < len(found)
    keeps_old = has_several and bool(ends_runs(api))
    for each in sorted(found, key=lambda schedule: (schedule["display_name"], not is_enabled(schedule))):
        state = "enabled" if is_enabled(each) else "paused"
        line = f"{each['recurring_run_id']}  {each['display_name']}  {describe_trigger(each)}  {state}"
        print(f"{line}{_note(each, found, keeps_old=keeps_old)}")
    if any("cron_schedule" in each.get("trigger", {}) for each in found):
        print(describe_cron_zone())


def _note(schedule: Message, found: Sequence[Message], *, keeps_old: bool) -> str:
    """
    Args:
        keeps_old: Replaced schedules stay, disabled, so only enabled ones count as several.
    """
    if not is_ours(schedule):
        return "  (not made by kubetrain)"
    same = [each for each in found if _is_same(each, schedule) and (is_enabled(each) or not keeps_old)]
    return "  (several have this name: schedule it again)" if len(same) > 1 else ""


def _is_same(one: Message, other: Message) -> bool:
    return is_ours(one) and (one["display_name"], pipeline_of(one)) == (other["display_name"], pipeline_of(other))


def _pause(api: KfpApi, wanted: str, *, force: bool) -> None:
    for each in filter(is_enabled, chosen(api, wanted, force=force)):
        set_enabled(api, each, False)
    print(f"schedule '{wanted}' is paused: resume it with `kubetrain schedule --resume {wanted}`")


def _resume(api: KfpApi, wanted: str, *, force: bool) -> None:
    """Enable one schedule of this name, because an interrupted replacement may leave several."""
    found = chosen(api, wanted, force=force)
    if any(map(is_enabled, found)):
        print(f"schedule '{wanted}' is enabled already")
        return
    set_enabled(api, found[0], True)
    missed = "the last one starts" if found[0].get("no_catchup") else "all start, one by one,"
    print(f"schedule '{wanted}' is enabled; if it missed runs, {missed} now")


def _delete(api: KfpApi, wanted: str, *, force: bool) -> None:
    found = chosen(api, wanted, force=force)
    if (version := ends_runs(api)) and not force:
        raise KfpError(
            f"Kubeflow Pipelines {version} would end the runs of '{wanted}' with it: pause it instead, or use --force"
        )
    for each in found:
        delete_schedule(api, each)
    print(f"schedule '{wanted}' is deleted" + ("" if version else "; runs that it started continue"))
