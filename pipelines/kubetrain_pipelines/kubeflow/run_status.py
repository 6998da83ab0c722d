"""`kubetrain status`: the last runs, or one with its stages and why it failed."""

import json
from datetime import UTC, datetime
from typing import Any

from kubetrain_pipelines.kubeflow.evidence import causes_of
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.run import Run, RunState, find_run, last_runs, titles_of
from kubetrain_pipelines.kubeflow.submit import follow_and_show
from kubetrain_trainer.errors import InvalidSetting


def status_and_show(api: KfpApi, wanted: str, *, watch: bool = False, as_json: bool = False) -> None:
    if watch and (not wanted or as_json):
        raise InvalidSetting("--watch shows one run to people: name the run, and leave out --json")
    if not wanted:
        runs = last_runs(api)
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
        print("no runs yet: `kubetrain submit` starts one")
    for run in runs:
        print(f"{run.id}  {run.state.value:<9}  {_time(run.created)}  {_took(run.created, run.ended):>9}  {run.name}")


def _print_run(run: Run, causes: list[str]) -> None:
    print(f"run {run.id} ({run.name}): {run.state.value}, begun {_time(run.created)}, {_took(run.created, run.ended)}")
    width = max((len(stage.title) for stage in run.stages), default=0)
    for stage in run.stages:
        print(f"  {stage.title:<{width}}  {stage.state.value:<9}  {_took(stage.started, stage.ended):>9}")
    for cause in causes:
        print(f"cause: {cause}")


def _time(time: datetime) -> str:
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _took(began: datetime, ended: datetime | None) -> str:
    seconds = int(((ended or datetime.now(UTC)) - began).total_seconds())
    hours, minutes = divmod(seconds // 60, 60)
    return (
        f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds % 60:02} s" if minutes else f"{seconds} s"
    )
