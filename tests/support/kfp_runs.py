"""Runs for the fake Kubeflow Pipelines: a compiled pipeline with the tasks of the recorded runs, and made-up ones."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kubetrain_pipelines.cli.status import StatusOptions, status_and_show
from kubetrain_pipelines.kubeflow import cancel_run, follow_run, kfp_api
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.workflow_nodes import fnv1a
from support.kfp_server import KfpServer, recorded_run

WORKFLOW = "train-x"
PROGRAM = "system-container-impl"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step that ran from one second of the minute 04:00 to another."""

    task: str
    within: str = "root(0)"
    state: str = "SUCCEEDED"
    started: int = 0
    ended: int | None = 9
    attempts: int = 1

    def names(self) -> list[str]:
        parts = [f"{WORKFLOW}(0)", *self.within.split("/"), self.task]
        whole = [WORKFLOW]
        for part in parts:
            whole.append(f"{whole[-1]}.{part.removesuffix('(0)')}" if part != parts[0] else part)
            whole += [f"{whole[-1]}(0)"] if part != parts[0] else []
        executor = f"{whole[-1]}.executor"
        return [*whole, executor, *(f"{executor}({number})" for number in range(self.attempts))]

    def pods(self) -> list[str]:
        """Return the names of the pods of the attempts."""
        executors = self.names()[-self.attempts :]
        return [f"{WORKFLOW}-{PROGRAM}-{fnv1a(name)}" for name in executors]

    @property
    def node(self) -> str:
        """The name of the node of the first attempt."""
        return self.names()[-self.attempts]


def workflow(steps: Sequence[Step], state: str = "RUNNING") -> dict[str, Any]:
    """Return a run with these steps, as the API describes it."""
    nodes: dict[str, Step] = {name: step for step in steps for name in step.names()}
    details = [_detail(name, step, nodes) for name, step in nodes.items()]
    times = {"created_at": _time(0), **({"finished_at": _time(59)} if state != "RUNNING" else {})}
    return {"run_id": "x", "display_name": "x", "state": state, **times, "run_details": {"task_details": details}}


@contextmanager
def kfp_without_cluster(*, ui: bool = False) -> Iterator[KfpServer]:
    """A server that is asked without long pauses, on a machine that knows no cluster."""
    with pytest.MonkeyPatch.context() as patch, KfpServer(ui=ui) as server:
        patch.setattr(kfp_api, "FIRST_PAUSE_SECONDS", 0.01)
        patch.setattr(follow_run, "POLL_SECONDS", 0.01)
        patch.setattr(cancel_run, "POLL_SECONDS", 0.01)
        patch.setenv("KUBECONFIG", "/nosuch")
        yield server


def play(server: KfpServer, *names: str) -> None:
    """Make the next run behave like these recorded ones, one after another."""
    server.next_story = [recorded_run(name) for name in names]


def write_pipeline(path: Path) -> Path:
    """Write a compiled pipeline with the tasks of the recorded runs."""
    tasks = {"greet": {"taskInfo": {"name": "Greet the user"}}, "count": {}, "fail": {}, "sleep": {}}
    parameters = {"name": {"parameterType": "STRING", "defaultValue": "you"}}
    spec = {
        "pipelineInfo": {"name": "greetings"},
        "root": {"dag": {"tasks": tasks}, "inputDefinitions": {"parameters": parameters}},
    }
    path.write_text(json.dumps(spec))
    return path


def show_status(api: KfpApi, run: str, **options: Any) -> None:
    status_and_show(
        StatusOptions(endpoint=api.connection.endpoint, namespace=api.connection.namespace, run=run, **options)
    )


def _detail(name: str, step: Step, nodes: dict[str, Step]) -> dict[str, Any]:
    parent = WORKFLOW + "(0)"
    children = [each for each in nodes if each != name and _parent(each) == name]
    detail = {
        "display_name": name.removeprefix(f"{parent}.").rpartition(".")[2],
        "state": step.state,
        "start_time": _time(step.started),
        "child_tasks": [{"pod_name": f"{WORKFLOW}-{fnv1a(each)}"} for each in children],
    }
    return {**detail, "end_time": _time(step.ended)} if step.ended is not None else detail


def _parent(name: str) -> str:
    """Return the node before an attempt, or the one that a part belongs to."""
    attempt = name.rpartition("(")
    return attempt[0] if attempt[2][:-1].isdigit() else name.rpartition(".")[0]


def _time(second: int) -> str:
    return f"2026-11-22T04:00:{second:02}Z"
