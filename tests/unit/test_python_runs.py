"""`import kubetrain`: runs in Kubeflow Pipelines from Python, against the server that the commands are tested with."""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kubetrain
from kubetrain_components.bring_code.fetch import fetch_code
from kubetrain_components.object_store.open_store import open_store
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError
from kubetrain_pipelines.local_run.embedded_s3 import EmbeddedS3
from support.api_server import Handler, answer, interrupt
from support.kfp_runs import Step, kfp_without_cluster, play, workflow, write_pipeline
from support.kfp_server import KfpServer

COMPILED = Path(__file__).parents[2] / "compiled"
TRAIN = str(COMPILED / "train_pytorch.yaml")
PLACES: dict[str, Any] = {"data": {"uri": "s3://b/data"}, "model": {"uri": "s3://b/models"}}
URIS = {"data_uri": "s3://b/data", "model_uri": "s3://b/models"}
"""The places as they are sent."""
EVALUATED, PROMOTED = Step(task="evaluate-model"), Step(task="promote-model", started=10, ended=12)
LAUNCHER = "I1122 04:00:01.123456       1 main.go:67] Setting log level to: '1'\n"
VERSION = "s3://b/models/20261122T040000Z-8cf23c11/"


@pytest.fixture(params=[False, True], ids=["api", "ui"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[KfpServer]:
    with kfp_without_cluster(ui=request.param) as server:
        monkeypatch.setenv("KUBETRAIN_KFP_ENDPOINT", server.endpoint)
        yield server


@pytest.fixture
def pipeline(tmp_path: Path) -> str:
    return str(write_pipeline(tmp_path / "greetings.yaml"))


def trained(server: KfpServer, state: str = "SUCCEEDED") -> kubetrain.Run:
    """Start a run that has evaluated and promoted a model when it is looked at."""
    server.next_story = [workflow([EVALUATED, PROMOTED], state)]
    server.logs[EVALUATED.pods()[0]] = f'{LAUNCHER}metrics: {{"accuracy": 0.5}}\nmetrics: {{"accuracy": 0.9, "n": 3}}\n'
    server.logs[PROMOTED.pods()[0]] = f"{LAUNCHER}published as {VERSION}, now the latest\n"
    return kubetrain.submit(TRAIN, **PLACES)


def test_a_run_is_submitted_with_the_values_of_python(server: KfpServer) -> None:
    run = kubetrain.submit(
        TRAIN,
        data=PLACES["data"],
        train={"entry": {"script": Path("train.py")}},
        model={**PLACES["model"], "args": {"depth": 3}},
        pods={"gpus": 8, "workers": 2, "check_imports": False},
        storage={"class": None},
        experiment="mine",
        name="nightly",
        service_account="team",
    )
    (sent,) = server.kinds["runs"].values()
    others = {"pods_more": {"check_imports": False}, "model_more": {"args": {"depth": 3}}}
    assert sent["runtime_config"]["parameters"] == {
        **URIS,
        "pods_gpus": 8,
        "pods_workers": 2,
        "train_entry": '{"script": "train.py"}',
        **others,
    }
    assert (sent["run_id"], sent["display_name"], sent["service_account"]) == (run.id, "nightly", "team")
    assert [each["display_name"] for each in server.kinds["experiments"].values()] == ["mine"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pods": {"gpu": 8}}, "there is no setting 'pods.gpu': did you mean 'pods.gpus'"),
        ({"pod": {"gpus": 8}}, "there is no setting 'pod': "),
        ({"pods": 8}, "pods must have settings by name, not 8"),
        ({"pods": {"workers": "two"}}, "pods.workers must be a whole number, not 'two'"),
        ({"pods": {"workers": 0}}, "pods.workers must be at least 1, not 0"),
        ({"train": {"entry": "train.py 'a"}}, "train.entry is not a command line (No closing quotation)"),
        ({"train": {"schedule_args": {"layers": {1, 2}}}}, "train.schedule_args must be a value of JSON"),
        ({"rates": {1, 2}}, "rates must be a value of JSON"),
        ({"model": {}}, "model.uri is missing"),
        ({"source": {"train": {}}}, "pass a file or a pipeline's name, not {'train': {}}"),
        ({"entry": print}, "there is no setting 'entry': did you mean 'train.entry'?"),
        ({"train": {"entry": print}}, "train.entry is <built-in function print>: pass a function"),
        ({"train": {"augment": print}}, "train.augment must be a value of JSON"),
        ({"code": {}}, "the path of a file or folder must be text, not {}"),
    ],
)
def test_what_the_command_refuses_is_refused_before_any_request(
    server: KfpServer, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(kubetrain.InvalidSetting, match=re.escape(message)):
        kubetrain.submit(**{"source": TRAIN, **PLACES, **settings})
    assert server.requests == []


def test_a_folder_of_code_goes_along(
    server: KfpServer, s3: EmbeddedS3, s3_credentials: None, bucket: str, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('$KUBETRAIN_OUTPUT')")
    models, data = f"s3://{bucket}/models", {"uri": "s3://b/data", "endpoint": s3.url}
    kubetrain.submit(TRAIN, code=tmp_path / "code", data=data, model={"uri": models}, train={"entry": "train.py"})
    (sent,) = server.kinds["runs"].values()
    digest = sent["runtime_config"]["parameters"]["train_more"]["code"]
    assert f".code/{digest}.tar.gz" in [each.key for each in open_store(models, s3.url).list()]


def train() -> None:
    print("trained")


def test_a_function_goes_along_as_a_script(
    server: KfpServer, s3: EmbeddedS3, s3_credentials: None, bucket: str, tmp_path: Path
) -> None:
    (tmp_path / "helper.py").write_text("HELP = 1")
    models, data = f"s3://{bucket}/models", {"uri": "s3://b/data", "endpoint": s3.url}
    for code in (None, tmp_path, tmp_path):
        kubetrain.submit(TRAIN, code=code, data=data, model={"uri": models}, train={"entry": train})
    sent = [each["runtime_config"]["parameters"] for each in server.kinds["runs"].values()]
    assert {each["train_entry"] for each in sent} == {'{"script": "kubetrain_function.py"}'}
    alone, beside, again = (each["train_more"]["code"] for each in sent)
    assert beside == again != alone
    fetch_code(open_store(models, s3.url), beside, tmp_path / "fetched")
    assert sorted(each.name for each in (tmp_path / "fetched").iterdir()) == ["helper.py", "kubetrain_function.py"]


def test_the_connection_is_that_of_the_commands(server: KfpServer, tmp_path: Path, pipeline: str) -> None:
    server.namespace, server.token = "team-a", "secret-of-the-team"
    (tmp_path / "token").write_text(server.token)
    login: Any = {"endpoint": server.endpoint, "namespace": "team-a", "token_file": str(tmp_path / "token")}
    run = kubetrain.submit(pipeline, **login)
    assert [each.id for each in kubetrain.runs(**login)] == [run.id]
    assert kubetrain.find_run(run.name, **login).id == run.id
    with pytest.raises(kubetrain.KubetrainError, match="authentication failed"):
        kubetrain.find_run(run.id, namespace="team-a")
    with pytest.raises(kubetrain.InvalidSetting, match="the CA file nosuch is not a file"):
        kubetrain.runs(ca_file="nosuch")


@pytest.mark.parametrize(
    ("misspelt", "known"), [("endpont", "endpoint"), ("namespce", "namespace"), ("token", "token_file")]
)
def test_a_misspelt_argument_of_the_connection_is_refused(server: KfpServer, misspelt: str, known: str) -> None:
    arguments: Any = {misspelt: "x"}
    for ask in (kubetrain.runs, kubetrain.schedules, partial(kubetrain.find_run, "nightly")):
        with pytest.raises(kubetrain.InvalidSetting, match=f"unknown argument '{misspelt}' .*did you mean '{known}'"):
            ask(**arguments)
    assert server.requests == []


def test_waiting_shows_the_progress_and_returns_the_run(
    server: KfpServer, pipeline: str, capsys: pytest.CaptureFixture[str]
) -> None:
    play(server, "run_running", "run_succeeded")
    run = kubetrain.submit(pipeline)
    assert run.wait() is run
    output = capsys.readouterr().out
    assert output.startswith("uploaded greetings-")
    assert f"run {run.id} of greetings-" in output
    assert "Greet the user: started\nGreet the user: finished after 9.0 s\n" in output
    assert run.status().state == "succeeded"
    assert ("Greet the user", "succeeded") in [(each.name, each.state) for each in run.status().stages]


def test_a_failed_run_raises_the_sentence_with_the_cause(server: KfpServer, pipeline: str) -> None:
    failed = Step(task="fail", state="FAILED")
    server.next_story = [workflow([failed], "FAILED")]
    server.logs[failed.pods()[0]] = "error: rank 1 ran out of memory\n"
    run = kubetrain.submit(pipeline)
    with pytest.raises(kubetrain.RunFailed, match=f"^run {run.id} failed: fail: rank 1 ran out of memory$"):
        run.wait()
    assert run.status().causes == ("fail: rank 1 ran out of memory",)
    assert run.logs("fail") == "error: rank 1 ran out of memory"


def test_an_interrupt_leaves_the_run_going_and_says_how_to_cancel_it(
    server: KfpServer, pipeline: str, capsys: pytest.CaptureFixture[str]
) -> None:
    play(server, "run_running")
    run = kubetrain.submit(pipeline)
    server.fail("/apis/v2beta1/runs/", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.wait()
    assert f"run {run.id} continues: " in capsys.readouterr().out
    assert not [each for each in server.requests if "terminate" in each]


def test_a_wait_with_a_timeout_ends(server: KfpServer, pipeline: str, capsys: pytest.CaptureFixture[str]) -> None:
    play(server, "run_running")
    run = kubetrain.submit(pipeline)
    with pytest.raises(TimeoutError, match=f"run {run.id} has not ended after 0.05 s") as raised:
        run.wait(timeout=0.05)
    assert isinstance(raised.value, kubetrain.KubetrainError)
    assert f"cancel it with `kubetrain.find_run('{run.id}').cancel()`" in capsys.readouterr().out


def test_a_run_is_canceled_and_says_what_could_not_be_verified(
    server: KfpServer, pipeline: str, capsys: pytest.CaptureFixture[str]
) -> None:
    play(server, "run_running", "run_canceling", "run_canceled")
    run = kubetrain.submit(pipeline)
    kubetrain.find_run(run.id).cancel()
    (request,) = (each for each in server.requests if "terminate" in each)
    assert request.endswith(f"/runs/{run.id}:terminate")
    assert "is canceled\ncould not verify that its jobs have stopped" in capsys.readouterr().out


def test_the_metrics_and_the_model_are_those_that_the_steps_logged(server: KfpServer) -> None:
    run = trained(server)
    assert (run.metrics, run.model_uri) == ({"accuracy": 0.9, "n": 3}, VERSION)
    server.logs[PROMOTED.pods()[0]] = f"already published as {VERSION}\n"
    assert run.model_uri == VERSION
    server.logs.clear()
    with pytest.raises(KfpError, match=r"the log of 'Evaluate the model' of run .* cannot be read: no cluster is"):
        _ = run.metrics


def test_a_model_that_was_not_published_has_metrics_but_no_address(server: KfpServer) -> None:
    run = trained(server)
    gate = Step(task="promote-model", state="FAILED", started=10, ended=12)
    server.stories[run.id] = [workflow([EVALUATED, gate], "FAILED")]
    assert (run.metrics, run.model_uri) == ({"accuracy": 0.9, "n": 3}, "")
    server.stories[run.id] = [workflow([Step(task="evaluate-model", state="RUNNING", ended=None)])]
    assert run.metrics == {}


def test_a_notebook_shows_stages_metrics_and_the_page(server: KfpServer) -> None:
    run = trained(server)
    shown = run._repr_html_()
    for part in ("Evaluate the model", "9 s", "accuracy", "0.9", VERSION, ">succeeded</span>"):
        assert part in shown
    link = f'<a href="{server.endpoint}/#/runs/details/{run.id}"'
    assert (link in shown) == server.ui, "the API server has no pages"
    server.logs.clear()
    assert "Evaluate the model" in run._repr_html_(), "the stages are shown without logs"
    server.fail("GET /", answer(403, "<b>no</b>"), times=9)
    assert "403" in run._repr_html_()
    assert "<b>no" not in run._repr_html_()


def test_a_run_that_does_not_exist(server: KfpServer) -> None:
    with pytest.raises(kubetrain.KubetrainError, match="run 'nosuch' does not exist"):
        kubetrain.find_run("nosuch")
    assert kubetrain.runs() == []


def test_a_schedule_is_created_listed_and_deleted(
    server: KfpServer, pipeline: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = kubetrain.schedule(str(COMPILED / "sync_only.yaml"), every="6h", name="nightly", data=PLACES["data"])
    (sent,) = server.schedules
    assert (sent["recurring_run_id"], sent["display_name"], sent["mode"]) == (made.id, made.name, "ENABLE")
    assert sent["runtime_config"] == {"parameters": {"data_uri": "s3://b/data"}}
    assert "schedule 'nightly' is enabled: every 21600 s" in capsys.readouterr().out
    assert repr(made).endswith("(nightly): every 21600 s>")
    sent["mode"] = "DISABLE"
    (listed,) = kubetrain.schedules()
    assert repr(listed) == f"<kubetrain schedule {made.id} (nightly): every 21600 s, paused>"
    listed.delete()
    assert server.schedules == []
    with pytest.raises(kubetrain.KubetrainError, match=f"^schedule '{made.id}' does not exist: .* have a new ID$"):
        made.delete()
    with pytest.raises(kubetrain.InvalidSetting, match="exactly one of cron"):
        kubetrain.schedule(pipeline)


def test_no_answer_is_shown_as_html(server: KfpServer) -> None:
    run = trained(server)

    def inject(handler: Handler) -> bool:
        story = workflow([Step(task="evaluate-model")], "SUCCEEDED")
        handler.send_json(200, {**story, "run_id": run.id})
        return True

    run.name = "<script>alert(1)</script>"
    server.logs[EVALUATED.pods()[0]] = f"metrics: {json.dumps({'<img src=x>': 1})}\n"
    server.fail("GET /apis/v2beta1/runs/", inject, times=9)
    assert "<script>" not in run._repr_html_()
    assert "<img" not in run._repr_html_()
