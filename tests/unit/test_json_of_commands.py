"""`--json`: the standard output has nothing but the facts, as JSON."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubetrain_pipelines.cli.runs import list_schedules_and_show, submit_and_show
from kubetrain_pipelines.cli.verify import verify_and_show
from kubetrain_pipelines.kubeflow.connection import Connection
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.schedule import Timing, create_schedule
from kubetrain_pipelines.kubeflow.submit import RunOptions
from kubetrain_trainer.durable_files import write_json
from kubetrain_trainer.errors import RunFailed
from kubetrain_trainer.output.manifest import MANIFEST
from support.kfp_runs import Step, kfp_without_cluster, show_status, workflow, write_pipeline
from support.kfp_server import KfpServer

ROOT = Path(__file__).parents[2]
VERSION = "s3://b/models/20261122T040000Z-8cf23c11/"


@pytest.fixture(params=[False, True], ids=["api", "ui"])
def server(request: pytest.FixtureRequest) -> Iterator[KfpServer]:
    with kfp_without_cluster(ui=request.param) as server:
        yield server


@pytest.fixture
def api(server: KfpServer) -> KfpApi:
    return KfpApi(Connection(endpoint=server.endpoint, environment={}))


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    return RunOptions(source=str(write_pipeline(tmp_path / "greetings.yaml")), name="nightly")


def page_of(server: KfpServer, run_id: str) -> str:
    return f"{server.endpoint}/#/runs/details/{run_id}" if server.ui else ""


def test_a_run_that_is_started_names_its_page(
    server: KfpServer, api: KfpApi, options: RunOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    submit_and_show(api, options, detach=True, as_json=True)
    (run_id,) = server.kinds["runs"]
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"run_id": run_id, "name": "nightly", "page": page_of(server, run_id)}
    assert f"run {run_id} of greetings-" in printed.err
    submit_and_show(api, options, detach=True)
    started = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("run "))
    assert started.endswith(page_of(server, next(reversed(server.kinds["runs"]))))


def test_a_run_that_is_followed_has_its_stages_and_its_model(
    server: KfpServer, api: KfpApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    options = RunOptions(source="train-pytorch", pairs=("data.uri=s3://b/data", "model.uri=s3://b/models"))
    promoted = Step(task="promote-model")
    server.next_story = [workflow([promoted], "SUCCEEDED")]
    server.logs[promoted.pods()[0]] = f"published as {VERSION}, now the latest\n"
    submit_and_show(api, options, as_json=True)
    (run_id,) = server.kinds["runs"]
    printed = capsys.readouterr()
    facts = json.loads(printed.out)
    assert (facts["run_id"], facts["state"], facts["page"]) == (run_id, "succeeded", page_of(server, run_id))
    assert ([stage["task"] for stage in facts["stages"]], facts["model_uri"]) == (["promote-model"], VERSION)
    assert f"run {run_id} succeeded: published as {VERSION}" in printed.err


def test_a_run_that_fails_is_an_error_and_no_facts(
    server: KfpServer, api: KfpApi, options: RunOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    server.next_story = [workflow([Step(task="fail", state="FAILED")], "FAILED")]
    with pytest.raises(RunFailed):
        submit_and_show(api, options, as_json=True)
    assert capsys.readouterr().out == ""


def test_the_status_has_the_page_of_each_run(
    server: KfpServer, api: KfpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = server.add("runs", {"display_name": "nightly", "state": "SUCCEEDED"})["run_id"]
    show_status(api, run_id, as_json=True)
    assert json.loads(capsys.readouterr().out)["page"] == page_of(server, run_id)
    show_status(api, "", as_json=True)
    assert [run["page"] for run in json.loads(capsys.readouterr().out)] == [page_of(server, run_id)]


def test_the_schedules_are_listed(
    server: KfpServer, api: KfpApi, options: RunOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    create_schedule(api, options, Timing(every="6h", max_concurrency=2), lambda _: None)
    list_schedules_and_show(api, as_json=True)
    (schedule,) = json.loads(capsys.readouterr().out)
    (made,) = server.schedules
    expected: dict[str, Any] = {"schedule_id": made["recurring_run_id"], "name": "nightly", "is_enabled": True}
    expected |= {"trigger": {"periodic_schedule": {"interval_second": "21600"}}, "max_concurrency": 2, "note": ""}
    assert schedule == expected


def test_what_is_verified_is_listed_with_its_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    write_json(tmp_path / "checkpoints" / "1" / MANIFEST, {})
    assert verify_and_show(tmp_path, as_json=True) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["path"], len(found["problems"])) == (str(tmp_path / "checkpoints" / "1"), 1)
