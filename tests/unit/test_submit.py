"""From a compiled file to a run that is followed to its end: parameters, versions, and lost answers."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kubetrain_pipelines.cli.runs import follow_and_show, submit_and_show
from kubetrain_pipelines.definitions.compile import OutputFormat
from kubetrain_pipelines.definitions.compiled_file import CompiledFile
from kubetrain_pipelines.kubeflow import follow_run
from kubetrain_pipelines.kubeflow.connection import Connection
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError, LostContact
from kubetrain_pipelines.kubeflow.run import Run
from kubetrain_pipelines.kubeflow.submit import RunOptions, ensure_version, submit_run
from kubetrain_trainer.errors import InvalidSetting, RunFailed
from support.api_server import answer, cut, interrupt
from support.kfp_runs import Step, kfp_without_cluster, play, workflow, write_pipeline
from support.kfp_server import KfpServer, recorded_run

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "compiled" / "train_pytorch.yaml"


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


def test_a_version_has_the_same_name_as_in_the_manifests_for_gitops() -> None:
    options = OutputFormat().options("train-pytorch", TRAIN.read_bytes())["kubernetes_manifest_options"]
    assert CompiledFile.read(TRAIN).version == options.pipeline_version_name


def test_the_compiled_file_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    for name in ("train-pytorch", "compiled/train_pytorch", "./compiled/train-pytorch", "compiled/train_pytorch.yaml"):
        assert CompiledFile.find(name).content == TRAIN.read_bytes()
    with pytest.raises(InvalidSetting, match="did you mean 'train-pytorch'"):
        CompiledFile.find("train-pytroch")
    monkeypatch.chdir(tmp_path)
    assert CompiledFile.find("train-pytorch").name == "train-pytorch", "compiled, because no file has the name"
    with pytest.raises(InvalidSetting, match="unknown pipeline 'train-own'"):
        CompiledFile.find("train-own")
    (tmp_path / "other.yaml").write_text("a: b")
    with pytest.raises(InvalidSetting, match=r"other\.yaml is not a compiled pipeline"):
        CompiledFile.find("other.yaml")


def test_a_run_that_its_first_step_would_refuse_is_not_sent(server: KfpServer, api: KfpApi) -> None:
    pairs = ("data.uri=s3://b/data", "model.uri=s3://b/models", "pods.workers=0")
    with pytest.raises(InvalidSetting, match=r"pods\.workers must be at least 1, not 0"):
        submit_and_show(api, RunOptions(source=str(TRAIN), pairs=pairs))
    assert server.requests == []


def test_settings_that_look_like_secrets_are_named_without_their_values(server: KfpServer, api: KfpApi) -> None:
    entry = '{"script": "train.py", "args": ["--api-key", "sk-abcdefghijklmnop1234"]}'
    pairs = [
        'pods.env={"HF_TOKEN": "hf_abcdefghijklmnop1234", "A": "b"}',
        'pods.secret_env={"TOKEN": "mine/token"}',
        f"train.entry={entry}",
    ]
    said: list[str] = []
    submit_run(
        api, RunOptions(source=str(TRAIN), pairs=("data.uri=s3://b/d", "model.uri=s3://b/m", *pairs)), said.append
    )
    warned = [each.split()[1] for each in said if "looks like a secret" in each]
    assert sorted(warned) == ["pods.env.HF_TOKEN", "train.entry.args"]
    assert "abcdefghijklmnop" not in "".join(said)


@pytest.mark.parametrize(
    ("settings", "named"), [((), ["components", "trainer-pytorch"]), (("pods.image=r.io/mine:1",), ["components"])]
)
def test_default_images_are_named_because_no_registry_has_them(
    api: KfpApi, settings: tuple[str, ...], named: list[str]
) -> None:
    said: list[str] = []
    pairs = ("data.uri=s3://b/d", "model.uri=s3://b/m", *settings)
    submit_run(api, RunOptions(source=str(TRAIN), pairs=pairs), said.append)
    (warning,) = (each for each in said if each.startswith("warning: "))
    assert re.findall(r"registry\.invalid/kubetrain/([\w-]+):0\.1\.0", warning) == named


def test_an_answer_without_the_id_is_an_error_in_one_sentence(server: KfpServer, api: KfpApi) -> None:
    server.fail("POST /apis/v2beta1/pipelines", answer(200, "{}"))
    pairs = ("data.uri=s3://b/d", "model.uri=s3://b/m")
    with pytest.raises(KfpError, match="an answer of Kubeflow Pipelines lacks pipeline_id"):
        submit_run(api, RunOptions(source=str(TRAIN), pairs=pairs), lambda line: None)


def test_a_compiled_file_cannot_run_code(tmp_path: Path) -> None:
    path, proof = tmp_path / "evil.yaml", tmp_path / "proof"
    path.write_text(f"pipelineInfo: !!python/object/apply:os.mkdir [{proof}]\nroot: {{}}\n")
    with pytest.raises(InvalidSetting, match=r"evil\.yaml is not valid YAML"):
        CompiledFile.read(path)
    assert not proof.exists()


@pytest.mark.parametrize(
    "content",
    [
        "{pipelineInfo: {}, root: {}}",
        "{pipelineInfo: {name: greetings}, root: null}",
        "{pipelineInfo: {name: greetings}, root: {inputDefinitions: {parameters: {name: {parameterType: TEXT}}}}}",
        "{pipelineInfo: {name: greetings}, root: {inputDefinitions: {parameters: {name: {}}}}}",
        "{pipelineInfo: {name: greetings}, root: {inputDefinitions: {parameters: {name: {parameterType: [1]}}}}}",
        "{pipelineInfo: {name: greetings}, root: {inputDefinitions: {parameters: [name]}}}",
        "{pipelineInfo: {name: greetings}, root: {inputDefinitions: null}}",
    ],
)
def test_a_file_that_no_compiler_wrote_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text(content)
    with pytest.raises(InvalidSetting, match=r"odd\.yaml is not a compiled pipeline"):
        CompiledFile.read(tmp_path / "odd.yaml")


def test_a_run_that_was_started_is_reported_even_if_interrupted(
    server: KfpServer, api: KfpApi, pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.fail("POST /apis/v2beta1/runs", interrupt)
    with pytest.raises(KeyboardInterrupt):
        submit_and_show(api, RunOptions(source=str(pipeline)))
    (run_id,) = server.kinds["runs"]
    said = capsys.readouterr()
    assert f"run {run_id} of greetings-" in said.out
    assert said.err == "stopping once it is known whether the run has started\n"


def test_a_version_is_uploaded_only_if_the_content_is_new(server: KfpServer, api: KfpApi, pipeline: Path) -> None:
    first = ensure_version(api, CompiledFile.read(pipeline))
    again = ensure_version(api, CompiledFile.read(pipeline))
    assert (first.is_new, again.is_new) == (True, False)
    assert first.reference == again.reference
    content = pipeline.read_bytes()
    pipeline.write_bytes(content + b"\n")
    changed = ensure_version(api, CompiledFile.read(pipeline))
    assert changed.is_new
    assert changed.pipeline_id == first.pipeline_id
    assert server.uploads == [content, content + b"\n"]


@pytest.mark.parametrize("request_", ["POST /apis/v2beta1/pipelines", "POST /apis/v2beta1/pipelines/upload_version"])
def test_an_upload_whose_answer_is_lost_is_looked_for(
    server: KfpServer, api: KfpApi, pipeline: Path, request_: str
) -> None:
    server.fail(request_, cut(0))
    version = ensure_version(api, CompiledFile.read(pipeline))
    assert version.version_id in server.kinds["versions"]
    assert len(server.kinds["pipelines"]) == len(server.kinds["versions"]) == 1


def test_a_concurrent_upload_of_the_same_content_is_used(server: KfpServer, api: KfpApi, pipeline: Path) -> None:
    file = CompiledFile.read(pipeline)
    uploaded: list[dict[str, Any]] = []

    def upload_first(handler: Any) -> bool:
        (known,) = server.kinds["pipelines"].values()
        uploaded.append(server.add("versions", {"name": file.version, "pipeline_id": known["pipeline_id"]}))
        return False

    server.fail("POST /apis/v2beta1/pipelines/upload_version", upload_first)
    version = ensure_version(api, file)
    assert (version.version_id, version.is_new) == (uploaded[0]["pipeline_version_id"], False)


def test_a_run_is_followed_to_its_end(
    server: KfpServer, api: KfpApi, pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(server, "run_running", "run_succeeded")
    server.fail("GET /apis/v2beta1/runs/", answer(503), times=2)
    submit_and_show(api, RunOptions(source=str(pipeline), pairs=("name=Ada",), experiment="mine"))
    (run,) = server.kinds["runs"].values()
    (experiment,) = server.kinds["experiments"].values()
    assert run["runtime_config"] == {"parameters": {"name": "Ada"}}
    assert (experiment["display_name"], run["experiment_id"]) == ("mine", experiment["experiment_id"])
    output = capsys.readouterr().out
    assert "Greet the user: started\nGreet the user: finished after 9.0 s\ncount: started\ncount: finished" in output
    assert output.endswith("succeeded\n")
    assert "driver" not in output


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("published as s3://b/m/1/, now the latest", "published as s3://b/m/1/, now the latest"),
        ("already published as s3://b/m/1/", "already published as s3://b/m/1/, so nothing was trained"),
    ],
)
def test_the_end_of_a_run_says_what_was_published(
    server: KfpServer, api: KfpApi, capsys: pytest.CaptureFixture[str], log: str, says: str
) -> None:
    promote = Step(task="promote-model")
    server.next_story = [workflow([promote], "SUCCEEDED")]
    server.logs[promote.pods()[0]] = f"{log}\n"
    submit_and_show(api, RunOptions(source=str(TRAIN), pairs=("data.uri=s3://b/d", "model.uri=s3://b/m")))
    assert capsys.readouterr().out.endswith(f" succeeded: {says}\n")


def test_each_iteration_of_a_loop_is_followed(
    server: KfpServer, api: KfpApi, pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [f"root(0)/for-loop-1(0)/item({number}:{number})(0)" for number in range(2)]
    over = Step(task="greet", within=places[0])
    running = Step(task="greet", within=places[1], state="RUNNING", ended=None)
    ended = Step(task="greet", within=places[1])
    server.next_story = [workflow([over, running])] * 4 + [workflow([over, ended], "SUCCEEDED")]
    submit_and_show(api, RunOptions(source=str(pipeline)))
    lines = [line for line in capsys.readouterr().out.splitlines() if "iteration" in line]
    first, second = (f"Greet the user (iteration {number}): " for number in range(2))
    assert lines == [
        f"{first}started",
        f"{first}finished after 9.0 s",
        f"{second}started",
        f"{second}finished after 9.0 s",
    ]


def test_a_stage_that_is_retried_is_shown_again(
    server: KfpServer, api: KfpApi, pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed, again = Step(task="greet", state="FAILED"), Step(task="greet", started=20, ended=25)
    server.next_story = [workflow([failed])] * 4 + [workflow([again], "SUCCEEDED")]
    submit_and_show(api, RunOptions(source=str(pipeline)))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Greet the user: ")]
    assert [line.partition(": ")[2] for line in lines] == [
        "started",
        "failed after 9.0 s",
        "started",
        "finished after 5.0 s",
    ]


def test_a_run_is_followed_through_an_outage(
    server: KfpServer, pipeline: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def come_back(seconds: float) -> None:
        if not server.is_listening:
            server.listen()

    monkeypatch.setattr(follow_run, "time", SimpleNamespace(monotonic=time.monotonic, sleep=come_back))
    api = KfpApi(Connection(endpoint=server.endpoint, environment={}), retry_seconds=0.05)
    submit_and_show(api, RunOptions(source=str(pipeline)), detach=True)
    (run_id,) = server.kinds["runs"]
    server.stories[run_id] = [recorded_run("run_running"), recorded_run("run_succeeded")]
    server.refuse()
    follow_and_show(api, run_id, {})
    output = capsys.readouterr().out
    assert "retrying" in output
    assert output.endswith("succeeded\n")


def test_an_outage_lasts_from_the_last_answer(
    server: KfpServer, pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, changes = 0.0, [lambda: None, server.refuse, server.listen]

    def pass_time(seconds: float) -> None:
        nonlocal now
        now += follow_run.OUTAGE_TIMEOUT_SECONDS - 1
        changes.pop(0)()

    monkeypatch.setattr(follow_run, "time", SimpleNamespace(monotonic=lambda: now, sleep=pass_time))
    api = KfpApi(Connection(endpoint=server.endpoint, environment={}), retry_seconds=0.05)
    submit_and_show(api, RunOptions(source=str(pipeline)), detach=True)
    (run_id,) = server.kinds["runs"]
    server.stories[run_id] = [recorded_run(name) for name in ("run_running", "run_running", "run_succeeded")]
    follow_and_show(api, run_id, {})
    assert changes == [], "the run went on for longer than an outage may last"


def test_a_server_that_stays_down_is_given_up_and_the_run_left_alone(
    server: KfpServer, pipeline: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_run, "OUTAGE_TIMEOUT_SECONDS", 0.1)
    api = KfpApi(Connection(endpoint=server.endpoint, environment={}), retry_seconds=0.05)
    submit_and_show(api, RunOptions(source=str(pipeline)), detach=True)
    server.refuse()
    (run_id,) = server.kinds["runs"]
    with pytest.raises(LostContact) as lost:
        follow_and_show(api, run_id, {})
    assert f"run {run_id} continues: follow it with `kubetrain status {run_id} --watch`" in capsys.readouterr().out
    assert lost.value.exit_code == 3


@pytest.mark.parametrize("status", [401, 403])
def test_a_follower_that_is_refused_stops_at_once(
    server: KfpServer, api: KfpApi, pipeline: Path, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    play(server, "run_running")
    server.fail("GET /apis/v2beta1/runs/", answer(status, "the cookie has expired"), times=2)
    with pytest.raises(LostContact, match="the cookie has expired"):
        submit_and_show(api, RunOptions(source=str(pipeline)))
    assert len([each for each in server.requests if each.startswith("GET /apis/v2beta1/runs/")]) == 1
    assert "continues: follow it with" in capsys.readouterr().out


def test_a_failed_run_fails_with_the_cause_in_its_logs(server: KfpServer, api: KfpApi, pipeline: Path) -> None:
    failed = recorded_run("run_failed")
    server.next_story = [failed]
    (stage,) = Run.of(failed, {"fail": "fail"}).stages
    workflow, _, number = stage.attempts[0].rpartition("-")
    server.logs[f"{workflow}-metadata-1-1-system-container-impl-{number}"] = (
        "I1122 launcher\nerror: rank 1 ran out\nF1122 exit\n"
    )
    with pytest.raises(RunFailed, match=r"run .* failed: fail: rank 1 ran out$"):
        submit_and_show(api, RunOptions(source=str(pipeline)))


def test_a_failed_run_without_a_known_cause_says_where_to_look(server: KfpServer, api: KfpApi, pipeline: Path) -> None:
    play(server, "run_failed")
    with pytest.raises(RunFailed, match=r"failed: see `kubetrain logs .*`"):
        submit_and_show(api, RunOptions(source=str(pipeline)))


def test_a_canceled_run_is_not_reported_as_failed(server: KfpServer, api: KfpApi, pipeline: Path) -> None:
    play(server, "run_canceling", "run_canceled")
    with pytest.raises(RunFailed, match="was canceled"):
        submit_and_show(api, RunOptions(source=str(pipeline)))


def test_a_run_whose_answer_is_lost_is_found_and_not_started_twice(
    server: KfpServer, api: KfpApi, pipeline: Path
) -> None:
    server.fail("POST /apis/v2beta1/runs", cut(0))
    submit_and_show(api, RunOptions(source=str(pipeline)), detach=True)
    assert len(server.kinds["runs"]) == 1


def test_a_run_whose_answer_is_lost_is_not_taken_for_an_older_one_of_its_name(
    server: KfpServer, api: KfpApi, pipeline: Path
) -> None:
    options = RunOptions(source=str(pipeline), name="mine")
    submit_and_show(api, options, detach=True)
    server.fail("POST /apis/v2beta1/runs", answer(502))
    with pytest.raises(KfpError, match="no run has started so far"):
        submit_and_show(api, options, detach=True)


def test_a_run_that_may_not_have_started_is_not_started_again(server: KfpServer, api: KfpApi, pipeline: Path) -> None:
    server.fail("POST /apis/v2beta1/runs", answer(502))
    with pytest.raises(KfpError, match=r"no run has started so far: check `kubetrain status`"):
        submit_and_show(api, RunOptions(source=str(pipeline)), detach=True)
    assert len([each for each in server.requests if each == "POST /apis/v2beta1/runs"]) == 1


@pytest.mark.parametrize(("tag", "is_refused"), [("2.15.0", True), ("2.16.1", False), ("unknown", False)])
def test_a_server_that_is_too_old_is_refused(server: KfpServer, api: KfpApi, tag: str, is_refused: bool) -> None:
    server.tag = tag
    options = RunOptions(source=str(TRAIN), pairs=("data.uri=s3://b/data", "model.uri=s3://b/models"))
    if is_refused:
        with pytest.raises(KfpError, match=rf"has version {tag}, .*: upgrade to 2\.16 or newer"):
            submit_and_show(api, options, detach=True)
    else:
        submit_and_show(api, options, detach=True)
    assert bool(server.uploads) == (not is_refused)


def test_a_multi_user_server_needs_a_profile(server: KfpServer, pipeline: Path) -> None:
    server.namespace = "team-a"
    options = RunOptions(source=str(pipeline))
    with pytest.raises(KfpError, match=r"is multi-user .*: pass your profile with --namespace"):
        submit_and_show(KfpApi(Connection(endpoint=server.endpoint, environment={})), options, detach=True)
    named = Connection(endpoint=server.endpoint, namespace="team-a", environment={})
    submit_and_show(KfpApi(named), options, detach=True)
    assert [each["namespace"] for each in server.kinds["experiments"].values()] == ["team-a"]
