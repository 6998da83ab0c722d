"""`kubetrain schedule`: a pipeline that runs by the clock; at most one schedule of a name does."""

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from kubetrain_pipelines.kubeflow.compiled_file import CompiledFile
from kubetrain_pipelines.kubeflow.cron import Cron
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message
from kubetrain_pipelines.kubeflow.kfp_errors import NotFound
from kubetrain_pipelines.kubeflow.replace_schedule import (
    delete_schedule,
    is_enabled,
    replace_schedule,
    schedules,
    set_enabled,
)
from kubetrain_pipelines.kubeflow.schedule_times import (
    ZONE_SETTING,
    next_times,
    seconds_of,
    server_zone,
    trigger_in_words,
)
from kubetrain_pipelines.kubeflow.submit import RunOptions, prepare
from kubetrain_trainer.errors import InvalidSetting, did_you_mean

SHOWN_TIMES = 3


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """What the command line says beside the run."""

    cron: str = ""
    every: str = ""
    max_concurrency: int = 1
    catchup: bool = False
    timezone: str = ""
    list: bool = False
    pause: str = ""
    resume: str = ""
    delete: str = ""

    def check(self, pipeline: str) -> None:
        if self.timezone:
            raise InvalidSetting(
                f"a schedule has no time zone of its own, so not '{self.timezone}': write its times in the server's, "
                f"which is {ZONE_SETTING}"
            )
        if sum(map(bool, (pipeline, self.list, self.pause, self.resume, self.delete))) != 1:
            raise InvalidSetting("say one thing: a PIPELINE, --list, --pause NAME, --resume NAME or --delete NAME")

    def trigger(self) -> Message:
        """
        Raises:
            InvalidSetting: where it never comes, or is said twice or not at all.
        """
        if bool(self.cron) == bool(self.every):
            raise InvalidSetting("say when: either --cron '0 0 2 * * *' (seconds first) or --every 6h")
        if self.every:
            return {"periodic_schedule": {"interval_second": str(seconds_of(self.every))}}
        if Cron.parse(self.cron).next_after(datetime.now(UTC), UTC) is None:
            raise InvalidSetting(f"cron '{self.cron}' never comes, on which the server would stall: correct its day")
        return {"cron_schedule": {"cron": self.cron}}


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
        _put_in_place(api, run, options)


def _put_in_place(api: KfpApi, run: RunOptions, options: ScheduleOptions) -> None:
    trigger = options.trigger()
    file = CompiledFile.find(run.pipeline)
    wanted = {
        **prepare(api, file, run),
        "display_name": run.name or file.name,
        "trigger": trigger,
        "max_concurrency": str(options.max_concurrency),
        "no_catchup": not options.catchup,
    }
    made, leftovers = replace_schedule(api, wanted)
    print(f"schedule '{made['display_name']}' is in place: {trigger_in_words(made)}")
    for each in leftovers:
        print(f"warning: {each}; the next `kubetrain schedule` of this name tries again")
    zone = server_zone()
    print(f"time zone: {zone.described}")
    for time in islice(next_times(made, zone.zone, datetime.now(UTC)), SHOWN_TIMES):
        print(f"next: {time:%a %Y-%m-%d %H:%M:%S %Z}")


def _list(api: KfpApi) -> None:
    found = schedules(api)
    if not found:
        print("no schedules: `kubetrain schedule PIPELINE --cron …` makes one")
        return
    zone = server_zone()
    print(f"time zone: {zone.described}")
    names = [each["display_name"] for each in found]
    for each in sorted(found, key=lambda schedule: (schedule["display_name"], not is_enabled(schedule))):
        time = next(next_times(each, zone.zone, datetime.now(UTC)), None)
        state = "paused" if not is_enabled(each) else f"next {time:%Y-%m-%d %H:%M:%S}" if time else "enabled"
        several = "  (one of several of this name: schedule it again)" if names.count(each["display_name"]) > 1 else ""
        print(f"{each['recurring_run_id']}  {each['display_name']}  {trigger_in_words(each)}  {state}{several}")


def _pause(api: KfpApi, name: str) -> None:
    for each in filter(is_enabled, _of_name(api, name)):
        set_enabled(api, each, False)
    print(f"schedule '{name}' is paused: `kubetrain schedule --resume {name}`")


def _resume(api: KfpApi, name: str) -> None:
    """Of several, as a replacement that was cut off leaves them, one runs."""
    found = _of_name(api, name)
    if not any(map(is_enabled, found)):
        set_enabled(api, found[0], True)
    print(f"schedule '{name}' runs")


def _delete(api: KfpApi, name: str) -> None:
    for each in _of_name(api, name):
        delete_schedule(api, each)
    print(f"schedule '{name}' is deleted; runs that it started go on")


def _of_name(api: KfpApi, name: str) -> list[Message]:
    if found := schedules(api, name):
        return found
    there = {each["display_name"] for each in schedules(api)}
    raise NotFound(f"there is no schedule '{name}': {did_you_mean(name, there) if there else 'there is none at all'}")
