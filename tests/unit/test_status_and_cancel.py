"""Look at runs and cancel them, by ID or by name."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kubetrain_pipelines.cli.runs import logs_and_show, submit_and_show
from kubetrain_pipelines.kubeflow.cancel_run import cancel_run
from kubetrain_pipelines.kubeflow.connection import Connection
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError, NotFound
from kubetrain_pipelines.kubeflow.submit import RunOptions
from support.api_server import answer, interrupt
from support.kfp_runs import kfp_without_cluster, play, show_status, write_pipeline
from support.kfp_server import KfpServer

UNKNOWN = "00000000-0000-4000-8000-0000000000aa"


@pytest.fixture
def server() -> Iterator[KfpServer]:
    with kfp_without_cluster() as server:
        yield server


@pytest.fixture
def api(server: KfpServer) -> KfpApi:
    return KfpApi(Connection(endpoint=server.endpoint, environment={}))


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    return write_pipeline(tmp_path / "greetings.yaml")


def test_the_status_of_a_run_and_of_the_last_runs(
    server: KfpServer, api: KfpApi, pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(server, "run_failed")
    submit_and_show(api, RunOptions(source=str(pipeline), name="nightly"), detach=True)
    (run_id,) = server.kinds["runs"]
    (version,) = server.kinds["versions"].values()
    version["pipeline_spec"] = {"pipeline_spec": json.loads(pipeline.read_text()), "platform_spec": {}}
    for wanted in (run_id, run_id[:6], "nightly"):
        capsys.readouterr()
        show_status(api, wanted, as_json=True)
        found = json.loads(capsys.readouterr().out)
        stages = [(each["title"], each["state"]) for each in found["stages"]]
        assert (found["run_id"], found["state"]) == (run_id, "failed")
        assert stages == [("Greet the user", "succeeded"), ("fail", "failed")]
    show_status(api, "nightly")
    assert "Greet the user  succeeded        8 s\n  fail            failed" in capsys.readouterr().out
    show_status(api, "")
    assert f"{run_id}  pending" in capsys.readouterr().out
    with pytest.raises(NotFound, match="run 'nosuch' does not exist"):
        show_status(api, "nosuch")


@pytest.mark.parametrize("look", [show_status, logs_and_show, lambda api, run_id: cancel_run(api, run_id, print)])
def test_an_id_without_a_run_is_answered_like_a_name(
    server: KfpServer, api: KfpApi, look: Callable[[KfpApi, str], None]
) -> None:
    with pytest.raises(NotFound, match=f"^run '{UNKNOWN}' does not exist: `kubetrain status` .* lists recent runs$"):
        look(api, UNKNOWN)


def test_a_route_that_does_not_exist_is_not_taken_for_a_run_that_does_not(server: KfpServer, api: KfpApi) -> None:
    server.fail("/runs/", answer(404, "404 page not found"))
    with pytest.raises(NotFound, match="page not found"):
        show_status(api, UNKNOWN)


def test_canceling_reports_what_it_could_not_verify(
    server: KfpServer, api: KfpApi, pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(server, "run_running", "run_canceling", "run_canceled")
    submit_and_show(api, RunOptions(source=str(pipeline), name="nightly"), detach=True)
    cancel_run(api, "nightly", print)
    assert [each.rpartition(":")[2] for each in server.requests if each.endswith(":terminate")] == ["terminate"]
    output = capsys.readouterr().out
    assert "is canceled\ncould not verify that its jobs have stopped: no cluster is configured" in output


@pytest.mark.parametrize(
    ("story", "says"),
    [
        (("run_running", "run_canceled_early"), "is canceled\n"),
        (("run_succeeded",), "had already ended (succeeded): nothing to cancel\n"),
        (("run_canceled",), "had already ended (canceled): nothing to cancel\n"),
        (("run_canceling", "run_canceled_early"), "is canceled\n"),
        (("run_running", "run_succeeded"), "had already ended (succeeded): nothing to cancel\n"),
    ],
)
def test_canceling_says_what_became_of_the_run(
    server: KfpServer,
    api: KfpApi,
    pipeline: Path,
    capsys: pytest.CaptureFixture[str],
    story: tuple[str, ...],
    says: str,
) -> None:
    play(server, *story)
    submit_and_show(api, RunOptions(source=str(pipeline), name="nightly"), detach=True)
    if story[0] != "run_running":
        server.fail(":terminate", answer(400, "Row not found"))
    cancel_run(api, "nightly", print)
    assert says in capsys.readouterr().out


@pytest.mark.parametrize("newer", [["nightly"], ["nightly"] * 120, ["Nightly"] * 120], ids=["1", "120", "other case"])
def test_canceling_a_name_means_the_run_that_has_not_ended(
    server: KfpServer, api: KfpApi, capsys: pytest.CaptureFixture[str], newer: list[str]
) -> None:
    for name, state in (("nightly", "RUNNING"), *((each, "SUCCEEDED") for each in newer)):
        server.add("runs", {"display_name": name, "state": state, "pipeline_version_reference": {}})
    running = next(iter(server.kinds["runs"]))

    def end(handler: Any) -> bool:
        server.kinds["runs"][running]["state"] = "FAILED"
        return False

    server.fail("GET /apis/v2beta1/runs/", end)
    cancel_run(api, "nightly", print)
    assert [each for each in server.requests if ":terminate" in each] == [
        f"POST /apis/v2beta1/runs/{running}:terminate"
    ]
    assert f"run {running} is canceled" in capsys.readouterr().out


def test_a_name_means_its_newest_run_in_the_same_letters(
    server: KfpServer, api: KfpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    _, newest, _ = (
        server.add("runs", {"display_name": name, "state": "SUCCEEDED", "pipeline_version_reference": {}})
        for name in ("nightly", "nightly", "Nightly")
    )
    show_status(api, "nightly", as_json=True)
    assert json.loads(capsys.readouterr().out)["run_id"] == newest["run_id"]
    with pytest.raises(NotFound):
        show_status(api, "NIGHTLY")


def test_a_beginning_that_several_ids_have_names_them(server: KfpServer, api: KfpApi) -> None:
    for number in "12":
        made = server.add("runs", {"display_name": "nightly", "state": "SUCCEEDED"})
        server.kinds["runs"][made["run_id"]]["run_id"] = f"abcd{number}{made['run_id'][5:]}"
    with pytest.raises(NotFound, match=r"^the IDs of 2 runs begin with abcd: abcd2[^ ]+, abcd1[^ ]+$"):
        show_status(api, "abcd")


def test_runs_are_listed_in_the_namespace(
    server: KfpServer, pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.namespace = "team-a"
    made = server.add("runs", {"display_name": "nightly", "state": "SUCCEEDED"})
    show_status(KfpApi(Connection(endpoint=server.endpoint, namespace="team-a", environment={})), "")
    assert made["run_id"] in capsys.readouterr().out
    with pytest.raises(KfpError, match="--namespace"):
        show_status(KfpApi(Connection(endpoint=server.endpoint, environment={})), "")


def test_canceling_a_name_of_several_runs_is_refused(server: KfpServer, api: KfpApi) -> None:
    for _ in range(2):
        server.add("runs", {"display_name": "nightly", "state": "RUNNING"})
    with pytest.raises(KfpError, match="several runs named 'nightly' have not ended") as refused:
        cancel_run(api, "nightly", print)
    assert all(run_id in str(refused.value) for run_id in server.kinds["runs"])
    assert not [each for each in server.requests if each.startswith("POST")]


def test_a_cancel_that_is_refused_is_an_error(server: KfpServer, api: KfpApi) -> None:
    made = server.add("runs", {"display_name": "nightly", "state": "RUNNING", "pipeline_version_reference": {}})
    server.fail(":terminate", answer(403, "RBAC: access denied"))
    with pytest.raises(KfpError, match="RBAC: access denied"):
        cancel_run(api, made["run_id"], print, timeout_seconds=0.1)


def test_an_interrupt_while_a_run_is_canceled_says_so(
    server: KfpServer, api: KfpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    made = server.add("runs", {"display_name": "nightly", "state": "RUNNING", "pipeline_version_reference": {}})
    server.fail("GET /apis/v2beta1/runs/", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cancel_run(api, made["run_id"], print)
    assert f"not checked: whether run {made['run_id']} and its jobs have stopped" in capsys.readouterr().out


def test_a_watched_run_has_succeeded_even_if_what_it_published_cannot_be_read(
    server: KfpServer, api: KfpApi, pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(server, "run_succeeded")
    submit_and_show(api, RunOptions(source=str(pipeline), name="nightly"), detach=True)
    (run_id,) = server.kinds["runs"]
    server.fail(f"GET /apis/v2beta1/runs/{run_id}", lambda _: False, times=2)
    server.fail(f"GET /apis/v2beta1/runs/{run_id}", answer(403, "the cookie has expired"))
    show_status(api, run_id, watch=True)
    assert capsys.readouterr().out.endswith(" succeeded\n")
    assert server._faults == [], "the last read was refused"


def test_a_run_that_does_not_end_is_an_error(server: KfpServer, api: KfpApi, pipeline: Path) -> None:
    play(server, "run_running")
    submit_and_show(api, RunOptions(source=str(pipeline), name="nightly"), detach=True)
    with pytest.raises(KfpError, match="was canceled, but is still running"):
        cancel_run(api, "nightly", print, timeout_seconds=0.1)
