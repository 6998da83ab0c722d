"""`kubetrain submit`, `status` and `logs`: what they print of runs in Kubeflow Pipelines."""

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kubetrain_components.interrupts import interrupted_by_sigterm
from kubetrain_pipelines.durations import describe_seconds
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.run import Run, find_run, recent_runs, titles_of
from kubetrain_pipelines.kubeflow.run_logs import follow_logs, read_logs
from kubetrain_pipelines.kubeflow.run_results import publication_of
from kubetrain_pipelines.kubeflow.run_status import RunStatus, read_status
from kubetrain_pipelines.kubeflow.submit import RunOptions, submit_run
from kubetrain_pipelines.kubeflow.watch_run import watch_run
from kubetrain_pipelines.say import print_line
from kubetrain_trainer.errors import InvalidSetting


def submit_and_show(api: KfpApi, options: RunOptions, *, detach: bool = False) -> None:
    """
    Raises:
        RunFailed: if the run fails or is canceled, with the cause if it is known.
    """
    run = submit_run(api, options, print_line)
    if detach:
        print(_next_commands(run.id))
    else:
        follow_and_show(api, run.id, run.titles)


def follow_and_show(api: KfpApi, run_id: str, titles: Mapping[str, str] | None) -> None:
    """
    Raises:
        RunFailed: if the run fails or is canceled, with the cause if it is known.
    """
    with interrupted_by_sigterm():
        run = watch_run(api, run_id, titles, _next_commands(run_id))
    publication = publication_of(api, run)
    print(f"run {run_id} succeeded{publication and f': {publication}'}")


def status_and_show(api: KfpApi, wanted: str, *, watch: bool = False, as_json: bool = False) -> None:
    if watch and (not wanted or as_json):
        raise InvalidSetting("--watch needs a RUN, and cannot be combined with --json")
    if not wanted:
        runs = recent_runs(api)
        return _print_json([run.to_dict() for run in runs]) if as_json else _print_runs(runs)
    if watch:
        message = find_run(api, wanted)
        return follow_and_show(api, message["run_id"], titles_of(api, message))
    status = read_status(api, wanted)
    return _print_json(status.to_dict()) if as_json else _print_status(status)


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


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=2))


def _print_runs(runs: list[Run]) -> None:
    if not runs:
        print("no runs yet: start one with `kubetrain submit`")
    for run in runs:
        print(f"{run.id}  {run.state:<9}  {_time(run.created)}  {describe_seconds(run.seconds):>9}  {run.name}")


def _print_status(status: RunStatus) -> None:
    run = status.run
    took = describe_seconds(run.seconds)
    print(f"run {run.id} ({run.name}): {run.state}, started {_time(run.created)}, {took}")
    width = max((len(stage.title) for stage in run.stages), default=0)
    for stage in run.stages:
        print(f"  {stage.title:<{width}}  {stage.state:<9}  {describe_seconds(stage.seconds):>9}")
    for cause in status.causes:
        print(f"cause: {cause}")


def _time(time: datetime) -> str:
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _next_commands(run_id: str) -> str:
    return f"follow it with `kubetrain status {run_id} --watch`, cancel it with `kubetrain cancel {run_id}`"
