"""The commands `kubetrain submit`, `logs` and `schedule list`."""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, redirect_stdout
from typing import Any

from kubetrain_pipelines.kubeflow.cron_zone import describe_cron_zone
from kubetrain_pipelines.kubeflow.find_schedules import is_enabled
from kubetrain_pipelines.kubeflow.follow_run import watch_run
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.run_logs import follow_logs, read_logs
from kubetrain_pipelines.kubeflow.run_results import publication_of, published_in
from kubetrain_pipelines.kubeflow.schedule import list_schedules
from kubetrain_pipelines.kubeflow.submit import RunOptions, SubmittedRun, submit_run
from kubetrain_pipelines.kubeflow.trigger import describe_trigger
from kubetrain_pipelines.requests.say import print_line


def submit_and_show(api: KfpApi, options: RunOptions, *, detach: bool = False, as_json: bool = False) -> None:
    """
    Raises:
        RunFailed: if the run fails or is canceled, with the cause if it is known.
    """
    start_and_show(api, lambda: submit_run(api, options, print_line), detach=detach, as_json=as_json)


def start_and_show(api: KfpApi, start: Callable[[], SubmittedRun], *, detach: bool, as_json: bool) -> None:
    """
    Raises:
        RunFailed: if the run fails or is canceled, with the cause if it is known.
    """
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        run = start()
        facts = {"run_id": run.id, "name": run.name, "page": api.connection.page_of(run.id)}
        if detach:
            print(next_commands(run.id))
        else:
            facts |= follow_and_show(api, run.id, run.titles)
    if as_json:
        print(json.dumps(facts, indent=2))


def follow_and_show(api: KfpApi, run_id: str, titles: Mapping[str, str] | None) -> dict[str, Any]:
    """
    Raises:
        RunFailed: if the run fails or is canceled, with the cause if it is known.
    """
    run = watch_run(api, run_id, titles, next_commands(run_id))
    publication = publication_of(api, run)
    print(f"run {run_id} succeeded{publication and f': {publication}'}")
    return {**run.to_dict(), "model_uri": published_in(publication)}


def logs_and_show(api: KfpApi, wanted: str, stage: str = "", *, follow: bool = False, everything: bool = False) -> None:
    """
    Raises:
        NoLog: if there is none yet, and `follow` is not set.
    """
    texts = (
        follow_logs(api, wanted, _print_error, stage, everything=everything)
        if follow
        else read_logs(api, wanted, stage, everything=everything)
    )
    for text in texts:
        print_line(text)


def _print_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def next_commands(run_id: str) -> str:
    return f"follow it with `kubetrain status {run_id} --watch`, cancel it with `kubetrain cancel {run_id}`"


def list_schedules_and_show(api: KfpApi, *, as_json: bool = False) -> None:
    found = list_schedules(api)
    if as_json:
        return print(json.dumps([item.to_dict() for item in found], indent=2))
    if not found:
        print("no schedules: create one with `kubetrain schedule create FILE --cron …`")
    for item in found:
        schedule, note = item.message, f"  ({item.note})" if item.note else ""
        state = "enabled" if is_enabled(schedule) else "paused"
        name = f"{schedule['recurring_run_id']}  {schedule['display_name']}"
        print(f"{name}  {describe_trigger(schedule)}  {state}{note}")
    if any("cron_schedule" in each.message.get("trigger", {}) for each in found):
        print(describe_cron_zone())
    return None
