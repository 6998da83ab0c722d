"""`kubetrain schedule`: create, replace, list, pause, resume and delete recurring runs."""

from dataclasses import dataclass

from kubetrain_pipelines.kubeflow.compiled_file import CompiledFile
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message
from kubetrain_pipelines.kubeflow.kfp_errors import NotFound
from kubetrain_pipelines.kubeflow.replace_schedule import (
    delete_schedule,
    is_enabled,
    replace_schedule,
    schedules,
    set_enabled,
)
from kubetrain_pipelines.kubeflow.submit import RunOptions, prepare_run
from kubetrain_pipelines.kubeflow.trigger import describe_trigger, make_trigger
from kubetrain_trainer.errors import InvalidSetting, did_you_mean

ZONE = (
    "cron times are in the server's time zone (CRON_SCHEDULE_TIMEZONE of its deployment ml-pipeline-scheduledworkflow; "
    "default: UTC)"
)


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

    def check(self, pipeline: str) -> None:
        if sum(map(bool, (pipeline, self.list, self.pause, self.resume, self.delete))) != 1:
            raise InvalidSetting("give exactly one of PIPELINE, --list, --pause NAME, --resume NAME and --delete NAME")


def schedule_and_show(api: KfpApi, run: RunOptions, options: ScheduleOptions) -> None:
    options.check(run.pipeline)
    if options.list:
        _list(api)
    elif options.pause:
        _pause(api, options.pause)
    elif options.resume:
        _resume(api, options.resume)
    elif options.delete:
        _delete(api, options.delete)
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
    created, leftovers = replace_schedule(api, wanted)
    print(f"schedule '{created['display_name']}' is enabled: {describe_trigger(created)}")
    for each in leftovers:
        print(f"warning: {each}; the next `kubetrain schedule` with this name tries again")
    if options.cron:
        print(ZONE)


def _list(api: KfpApi) -> None:
    found = schedules(api)
    if not found:
        print("no schedules: create one with `kubetrain schedule PIPELINE --cron …`")
        return
    print(ZONE)
    names = [each["display_name"] for each in found]
    for each in sorted(found, key=lambda schedule: (schedule["display_name"], not is_enabled(schedule))):
        state = "enabled" if is_enabled(each) else "paused"
        note = "  (several have this name: schedule it again)" if names.count(each["display_name"]) > 1 else ""
        print(f"{each['recurring_run_id']}  {each['display_name']}  {describe_trigger(each)}  {state}{note}")


def _pause(api: KfpApi, name: str) -> None:
    for each in filter(is_enabled, _named(api, name)):
        set_enabled(api, each, False)
    print(f"schedule '{name}' is paused: resume it with `kubetrain schedule --resume {name}`")


def _resume(api: KfpApi, name: str) -> None:
    """Enable one schedule of this name, because an interrupted replacement may leave several."""
    found = _named(api, name)
    if not any(map(is_enabled, found)):
        set_enabled(api, found[0], True)
    print(f"schedule '{name}' is enabled")


def _delete(api: KfpApi, name: str) -> None:
    for each in _named(api, name):
        delete_schedule(api, each)
    print(f"schedule '{name}' is deleted; runs that it started continue")


def _named(api: KfpApi, name: str) -> list[Message]:
    if found := schedules(api, name):
        return found
    names = {each["display_name"] for each in schedules(api)}
    raise NotFound(f"schedule '{name}' does not exist: {did_you_mean(name, names) if names else 'there are none'}")
