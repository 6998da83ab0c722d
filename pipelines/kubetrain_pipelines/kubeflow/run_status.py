"""`kubetrain status`: list recent runs, or show one with its stages and the cause of its failure."""

import json
from datetime import UTC, datetime
from typing import Any

from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.run import Run, find_run, recent_runs, titles_of
from kubetrain_pipelines.kubeflow.run_state import RunState
from kubetrain_pipelines.kubeflow.step_logs import causes_of
from kubetrain_pipelines.kubeflow.submit import follow_and_show
from kubetrain_trainer.errors import InvalidSetting


def status_and_show(api: KfpApi, wanted: str, *, watch: bool = False, as_json: bool = False) -> None:
    if watch and (not wanted or as_json):
        raise InvalidSetting("--watch needs a RUN, and cannot be combined with --json")
    if not wanted:
        runs = recent_runs(api)
        return _print_json([run.to_dict() for run in runs]) if as_json else _print_runs(runs)
    message = find_run(api, wanted)
    titles = titles_of(api, message)
    if watch:
        return follow_and_show(api, message["run_id"], titles)
    run = Run.of(message, titles)
    causes = causes_of(api, run) if run.state is RunState.FAILED else []
    return _print_json({**run.to_dict(), "causes": causes}) if as_json else _print_run(run, causes)


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=2))


def _print_runs(runs: list[Run]) -> None:
    if not runs:
        print("no runs yet: start one with `kubetrain submit`")
    for run in runs:
        print(
            f"{run.id}  {run.state.value:<9}  {_time(run.created)}  {_elapsed(run.created, run.ended):>9}  {run.name}"
        )


def _print_run(run: Run, causes: list[str]) -> None:
    elapsed = _elapsed(run.created, run.ended)
    print(f"run {run.id} ({run.name}): {run.state.value}, started {_time(run.created)}, {elapsed}")
    width = max((len(stage.title) for stage in run.stages), default=0)
    for stage in run.stages:
        print(f"  {stage.title:<{width}}  {stage.state.value:<9}  {_elapsed(stage.started, stage.ended):>9}")
    for cause in causes:
        print(f"cause: {cause}")


def _time(time: datetime) -> str:
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _elapsed(started: datetime, ended: datetime | None) -> str:
    seconds = int(((ended or datetime.now(UTC)) - started).total_seconds())
    hours, minutes = divmod(seconds // 60, 60)
    return (
        f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds % 60:02} s" if minutes else f"{seconds} s"
    )
