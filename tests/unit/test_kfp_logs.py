"""The logs of a run: from the API, from the UI behind a gateway, or from the cluster; all at once, or as they grow."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kubetrain import Run
from kubetrain_pipelines.cli.runs import logs_and_show, submit_and_show
from kubetrain_pipelines.kubeflow.connection import Connection
from kubetrain_pipelines.kubeflow.follow_logs import ROTATED, FollowedLogs, Tail
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError
from kubetrain_pipelines.kubeflow.run import read_run
from kubetrain_pipelines.kubeflow.run_logs import OwnOutput
from kubetrain_pipelines.kubeflow.submit import RunOptions
from kubetrain_trainer.errors import InvalidSetting, RunFailed
from support.api_server import PODS, ApiServer, Fault, Handler, answer, cut, stamp
from support.kfp_runs import Step, kfp_without_cluster, show_status, workflow, write_pipeline
from support.kfp_server import RECORDED, KfpServer, recorded_answer, recorded_run

GREET, FAIL = Step(task="greet"), Step(task="fail", state="FAILED", started=1)
FAILED = workflow([GREET, FAIL], "FAILED")
WORKFLOW = "/apis/argoproj.io/v1alpha1/namespaces/tests/workflows/train-x"
LAUNCHER = "I1122 04:00:01.123456       1 main.go:67] Setting log level to: '1'"
AROUND = f"""{LAUNCHER}
time="2026-11-22T04:00:01.123Z" level=info msg="capturing logs" argo=true
time=2026-11-22T04:00:01.123Z level=INFO msg="capturing logs" argo=true
[KFP Executor 2026-11-22 04:00:02,123 INFO]: Looking for component `greet` in --component_module_path `/tmp/x.py`
[KFP Executor 2026-11-22 04:00:02,123 INFO]: Got executor_input:
{{
    "inputs": {{}}
}}
[KFP Executor 2026-11-22 04:00:02,123 INFO]: the step's own message
I1122 04:00:03.123456 4711 train.py:67] a message of absl
{{"a": "result of the step"}}
[KFP Executor 2026-11-22 04:00:02,123 INFO]: Wrote executor output file to /tmp/kfp_outputs/output_metadata.json.
I1122 04:00:01.123456       1 launcher_v2.go:1230] ExecutorOutput: {{
  "parameterValues": {{}}
}}
I1122 04:00:01.123456       1 launcher_v2.go:206] publish success.
"""


@pytest.fixture(params=[False, True], ids=["api", "ui"])
def server(request: pytest.FixtureRequest) -> Iterator[KfpServer]:
    with kfp_without_cluster(ui=request.param) as server:
        yield server


@pytest.fixture
def api(server: KfpServer) -> KfpApi:
    return KfpApi(Connection(endpoint=server.endpoint, namespace="tests", environment={}), retry_seconds=0.5)


@pytest.fixture
def start(server: KfpServer, api: KfpApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def start(*story: dict[str, Any]) -> str:
        server.next_story = list(story)
        pipeline = write_pipeline(tmp_path / "greetings.yaml")
        submit_and_show(api, RunOptions(source=str(pipeline), name="nightly"), detach=True)
        (version,) = server.kinds["versions"].values()
        version["pipeline_spec"] = json.loads(pipeline.read_text())
        capsys.readouterr()
        (run_id,) = server.kinds["runs"]
        return run_id

    return start


@pytest.fixture
def cluster(server: KfpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with ApiServer() as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path)))
        yield cluster


def add_pod(cluster: ApiServer, run_id: str, step: Step) -> None:
    labels = {"pipeline/runid": run_id}
    notes = {"workflows.argoproj.io/node-name": step.node}
    cluster.put(WORKFLOW, metadata={"labels": labels})
    cluster.put(f"{PODS}/{step.pods()[0]}", metadata={"labels": labels, "annotations": notes})


def running_pod(start: Callable[..., str], cluster: ApiServer) -> tuple[str, str, Any]:
    """Start a run with one step that runs, and return its ID, the step's pod, and the log of that."""
    running = Step(task="greet", state="RUNNING", ended=None)
    (pod,) = running.pods()
    run_id, log = start(workflow([running])), cluster.run(pod)
    add_pod(cluster, run_id, running)
    return run_id, pod, log


def requests_for_logs(server: ApiServer) -> list[str]:
    return [each for each in server.requests if "/log" in each]


def test_the_log_of_one_stage_or_of_all(
    server: KfpServer, api: KfpApi, start: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    start(FAILED)
    server.logs[GREET.pods()[0]], server.logs[FAIL.pods()[0]] = "hello\n", "error: no\n"
    logs_and_show(api, "nightly")
    assert capsys.readouterr().out == "== Greet the user\nhello\n== fail\nerror: no\n"
    for name in ("Greet the user", "greet"):
        logs_and_show(api, "nightly", name)
        assert capsys.readouterr().out == "hello\n"
    server.logs.clear()
    with pytest.raises(KfpError, match=r"no log of run .*the cluster cannot be asked \(no cluster is configured"):
        logs_and_show(api, "nightly")
    with pytest.raises(InvalidSetting, match=r"has no stage 'gret': did you mean 'greet'\?"):
        logs_and_show(api, "nightly", "gret")


@pytest.mark.parametrize(
    "fault",
    [answer(403, "RBAC: access denied"), answer(404), answer(503, "no healthy upstream"), cut(0)],
    ids=["403", "404", "503", "cut"],
)
def test_a_log_route_that_fails_does_not_hide_the_state(
    server: KfpServer, api: KfpApi, start: Callable[..., str], capsys: pytest.CaptureFixture[str], fault: Fault
) -> None:
    run_id = start(FAILED)
    server.fail("/log", fault, times=99)
    show_status(api, run_id)
    assert "(nightly): failed" in capsys.readouterr().out
    with pytest.raises(RunFailed, match=f"run {run_id} failed: see `kubetrain logs {run_id}`"):
        show_status(api, run_id, watch=True)


def test_the_cluster_has_the_logs_that_kubeflow_pipelines_has_not(
    server: KfpServer,
    api: KfpApi,
    start: Callable[..., str],
    cluster: ApiServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_id = start(FAILED)
    server.fail("/log", answer(403), times=99)
    add_pod(cluster, run_id, FAIL)
    cluster.write(cluster.run(FAIL.pods()[0]), b"error: rank 1 ran out\n")
    add_pod(cluster, run_id, FAIL)
    logs_and_show(api, run_id)
    assert capsys.readouterr().out == "== fail\nerror: rank 1 ran out\n"


def test_a_login_page_is_not_a_log(server: KfpServer, api: KfpApi, start: Callable[..., str]) -> None:
    run_id = start(FAILED)

    def log_in(handler: Handler) -> bool:
        handler.send_bytes(200, b"<!doctype html><html>Log in to Your Account</html>")
        return True

    server.fail("/log", log_in, times=99)
    with pytest.raises(KfpError, match="no log of run"):
        logs_and_show(api, run_id)


def test_parallel_stages_have_their_own_causes(
    server: KfpServer, api: KfpApi, start: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    count = Step(task="count", state="FAILED", ended=8)
    greet = Step(task="greet", state="FAILED", ended=9)
    sleep = Step(task="sleep", ended=9)
    run_id = start(workflow([count, greet, sleep], "FAILED"))
    for step in (count, greet, sleep):
        server.logs[step.pods()[0]] = f"error: {step.task} ran out of memory\n"
    show_status(api, run_id)
    causes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("cause")]
    assert causes == ["cause: count: count ran out of memory", "cause: Greet the user: greet ran out of memory"]


def test_the_cluster_has_the_causes_of_the_steps_that_failed_for_good(
    server: KfpServer,
    api: KfpApi,
    start: Callable[..., str],
    cluster: ApiServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_id = start(workflow([Step(task="greet", attempts=2), FAIL], "FAILED"))
    failed = {"type": "Pod", "phase": "Failed", "startedAt": "2026-11-22T04:00:01Z"}
    driver = FAIL.node.replace("fail(0).executor(0)", "count-driver(0)")
    messages = {
        GREET.node: "node lost",
        FAIL.node: "main: Error (exit code 1): rank 1 left",
        driver: "no such value",
    }
    nodes = {name: {**failed, "name": name, "message": message} for name, message in messages.items()}
    add_pod(cluster, run_id, FAIL)
    cluster.put(WORKFLOW, metadata={"labels": {"pipeline/runid": run_id}}, status={"nodes": nodes})
    show_status(api, run_id)
    causes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("cause")]
    assert causes == ["cause: fail: rank 1 left", "cause: count-driver: no such value"]


def test_the_log_has_the_cause_of_a_step_whose_pod_left_only_an_exit_code(
    server: KfpServer,
    api: KfpApi,
    start: Callable[..., str],
    cluster: ApiServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    count = Step(task="count", state="FAILED", started=2)
    run_id = start(workflow([count, FAIL], "FAILED"))
    failed = {"type": "Pod", "phase": "Failed", "startedAt": "2026-11-22T04:00:01Z"}
    messages = {count.node: "main: Error (exit code 1): rank 1 left", FAIL.node: "main: Error (exit code 1)"}
    nodes = {name: {**failed, "name": name, "message": message} for name, message in messages.items()}
    cluster.put(WORKFLOW, metadata={"labels": {"pipeline/runid": run_id}}, status={"nodes": nodes})
    server.logs[FAIL.pods()[0]] = (RECORDED / "kfp" / "log_of_refused_upload.txt").read_text()
    with pytest.raises(RunFailed, match=r"failed: count: rank 1 left; fail: Kubeflow Pipelines: failed to upload"):
        show_status(api, run_id, watch=True)


def test_a_run_that_its_workflow_knows_to_be_canceled_is_not_reported_as_failed(
    server: KfpServer,
    api: KfpApi,
    start: Callable[..., str],
    cluster: ApiServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Canceled within a second of its start: the server wrote RUNNING over CANCELING."""
    run_id = start(recorded_run("run_canceled_early"))
    cluster.put(WORKFLOW, metadata={"labels": {"pipeline/runid": run_id}}, spec={"activeDeadlineSeconds": 0})
    show_status(api, run_id)
    assert "(nightly): canceled, started" in capsys.readouterr().out
    assert Run(api, run_id, "nightly").status().state == "canceled"
    with pytest.raises(RunFailed, match=r"was canceled$"):
        show_status(api, run_id, watch=True)
    cluster.put(WORKFLOW, metadata={"labels": {"pipeline/runid": run_id}}, spec={})
    show_status(api, run_id)
    assert "(nightly): failed, started" in capsys.readouterr().out


def test_the_logs_of_a_run_whose_version_was_deleted(
    server: KfpServer, api: KfpApi, start: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = start(FAILED)
    server.kinds["versions"].clear()
    server.logs[FAIL.pods()[0]] = "error: no\n"
    logs_and_show(api, run_id, "fail")
    assert capsys.readouterr().out == "error: no\n"
    show_status(api, run_id)
    assert "cause: fail: no\n" in capsys.readouterr().out


def test_what_others_wrote_around_a_step_is_printed_only_with_all(
    server: KfpServer, api: KfpApi, start: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = start(workflow([GREET], "SUCCEEDED"))
    server.logs[GREET.pods()[0]] = AROUND
    logs_and_show(api, run_id, "greet")
    lines = AROUND.splitlines()
    assert capsys.readouterr().out.splitlines() == lines[8:11]
    logs_and_show(api, run_id, "greet", everything=True)
    assert capsys.readouterr().out == AROUND
    server.logs[GREET.pods()[0]] = recorded_answer("api_log")["body"].removesuffix("hello\n")
    logs_and_show(api, run_id)
    assert capsys.readouterr().out == "the steps themselves wrote nothing: --all prints 1 lines of Kubeflow Pipelines\n"


def test_json_that_was_cut_hides_nothing_that_follows() -> None:
    lines = ["I1122 04:00:01.123456       1 launcher_v2.go:1230] ExecutorOutput: {", '  "a": 1,', "hello", "}"]
    assert OwnOutput().of(lines) == ["hello", "}"]
    one_by_one = OwnOutput()
    assert [kept for line in lines for kept in one_by_one.of([line])] == ["hello", "}"]


def test_logs_are_followed_to_the_end_of_the_run(
    server: KfpServer, api: KfpApi, start: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    running = Step(task="greet", state="RUNNING", ended=None)
    count = Step(task="count", started=10)
    looks: list[tuple[dict[str, Any], dict[Step, str]]] = [
        (workflow([running]), {}),
        (workflow([running]), {running: f"{LAUNCHER}\nhello\nhal"}),
        (workflow([GREET]), {running: f"{LAUNCHER}\nhello\nhalf a line\nbye"}),
        (workflow([GREET, count], "SUCCEEDED"), {running: "printed already\n", count: "counted\n"}),
    ]

    def look(handler: Handler) -> bool:
        story, logs = looks.pop(0)
        server.stories[run_id] = [story]
        server.logs |= {step.pods()[0]: text for step, text in logs.items()}
        return False

    run_id = start(workflow([running]))
    server.fail("/apis/v2beta1/runs/", lambda handler: False)
    server.fail("/apis/v2beta1/runs/", look, times=len(looks))
    logs_and_show(api, run_id, follow=True)
    assert capsys.readouterr().out == "== Greet the user\nhello\nhalf a line\nbye\n== count\ncounted\n"


def test_only_new_lines_are_asked_of_the_cluster(
    server: KfpServer,
    api: KfpApi,
    start: Callable[..., str],
    cluster: ApiServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_id, _, log = running_pod(start, cluster)
    written = iter([[0, 1], [2], [], [30, 31]])

    def write_more(handler: Handler) -> bool:
        lines = next(written, None)
        if lines is None:
            server.stories[run_id] = [workflow([GREET], "SUCCEEDED")]
        for number in lines or ():
            cluster.write(log, f"{stamp(number)} line {number}\n".encode())
        return False

    server.fail("/apis/v2beta1/runs/", write_more, times=6)
    logs_and_show(api, run_id, follow=True)
    output = capsys.readouterr().out
    assert output == "== Greet the user\nline 0\nline 1\nline 2\nline 30\nline 31\n"
    asked = requests_for_logs(cluster)
    assert "sinceTime" not in asked[0]
    assert all("sinceTime=" in each for each in asked[2:])
    assert requests_for_logs(server) == []


def test_a_log_that_is_complete_no_longer_delays_the_others(
    server: KfpServer, api: KfpApi, start: Callable[..., str]
) -> None:
    run = read_run(api, start(workflow([GREET])), None)
    (stage,), logs = run.stages, FollowedLogs(api, run)
    server.logs[GREET.pods()[0]] = "hello\n" * 1000
    assert [*logs.new_lines(stage, is_over=False)]
    assert logs.pause_seconds > 0
    assert not [*logs.new_lines(stage, is_over=True)]
    assert logs.pause_seconds == 0


@pytest.mark.parametrize("cuts", [1, 3])
def test_the_end_of_a_log_is_read_again_if_its_last_reading_breaks_off(
    cuts: int,
    server: KfpServer,
    api: KfpApi,
    start: Callable[..., str],
    cluster: ApiServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is often the error. After three tries, it comes from Kubeflow Pipelines."""
    run_id, pod, log = running_pod(start, cluster)
    cluster.write(log, f"{stamp(0)} first\n".encode())

    def end(handler: Handler) -> bool:
        cluster.write(log, f"{stamp(1)} error: the cause\n".encode())
        cluster.fail("/log?", cut(20), times=cuts)
        server.logs[pod] = "first\nerror: the cause\n"
        server.stories[run_id] = [workflow([GREET], "SUCCEEDED")]
        return False

    server.fail("/apis/v2beta1/runs/", lambda handler: False, times=2)
    server.fail("/apis/v2beta1/runs/", end)
    logs_and_show(api, run_id, follow=True)
    assert capsys.readouterr().out == "== Greet the user\nfirst\nerror: the cause\n"
    assert bool(requests_for_logs(server)) == (cuts == 3)


@pytest.mark.parametrize("kept", range(1, 41))
def test_a_rotated_log_goes_on_where_it_stopped(kept: int) -> None:
    lines = [f"line {number}" for number in range(40)]
    tail = Tail()
    seen = tail.new_lines("\n".join(lines[:20]) + "\nline 2", is_over=False)
    seen += tail.new_lines("\n".join(lines[-kept:]) + "\n", is_over=False)
    assert seen == (lines if kept > 20 else [*lines[:20], ROTATED, *lines[-kept:]])


def test_a_log_that_grew_is_printed_once() -> None:
    tail = Tail()
    texts = ["", "same\n", "same\nsame\n", "same\nsame\n", "same\nsame\nlast"]
    assert [tail.new_lines(text, is_over=text == texts[-1]) for text in texts] == [[], ["same"], ["same"], [], ["last"]]
