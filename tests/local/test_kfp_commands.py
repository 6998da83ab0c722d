"""The commands for Kubeflow Pipelines as users run them: exit codes, Ctrl-C, and no secret in the output."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.api_server import Handler, answer
from support.cli import interrupt, kubetrain, read_until, start
from support.kfp_server import KfpServer

COMPILED = Path(__file__).parents[2] / "compiled" / "sync_only.yaml"
RECORDED = Path(__file__).parents[1] / "unit" / "recorded" / "kfp"
SUBMIT = ("submit", COMPILED, "--set", "data.uri=s3://b/data")
CANARY = "canary-0d44"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[KfpServer]:
    with KfpServer() as server:
        server.token = CANARY
        monkeypatch.setenv("KUBETRAIN_KFP_ENDPOINT", server.endpoint)
        monkeypatch.setenv("KF_PIPELINES_TOKEN", CANARY)
        monkeypatch.setenv("KF_PIPELINES_COOKIE", f"session={CANARY}-cookie")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{CANARY}-aws")
        monkeypatch.setenv("KUBECONFIG", "/nosuch")
        yield server


def assert_no_secret(server: KfpServer, *outputs: str) -> None:
    assert CANARY not in f"{outputs} {server.bodies} {server.requests} {server.uploads}"


def test_exit_codes_and_no_secrets(server: KfpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.next_story = [json.loads((RECORDED / "run_succeeded.json").read_text())]
    done = kubetrain(*SUBMIT)
    assert (done.exit_code, "succeeded" in done.output) == (0, True), done.output
    server.next_story = [json.loads((RECORDED / "run_failed.json").read_text())]
    failed = kubetrain(*SUBMIT, "--name", "second")
    assert (failed.exit_code, failed.output.count("error: run ")) == (1, 1), failed.output
    misused = kubetrain(*SUBMIT, "--set", "data.acess=x")
    assert (misused.exit_code, misused.output) == (
        2,
        "error: there is no setting 'data.acess': did you mean 'data.access'?\n",
    )
    proxied = kubetrain("status", ALL_PROXY="socks5://proxy:1080", KUBETRAIN_KFP_ENDPOINT="http://kfp.example")
    assert (proxied.exit_code, proxied.output.count("error: proxies of the kind")) == (2, 1), proxied.output
    scheduled = kubetrain("schedule", "create", *SUBMIT[1:], "--every", "6h")
    assert (scheduled.exit_code, "is enabled: every 21600 s" in scheduled.output) == (0, True), scheduled.output
    server.token = "another"
    refused = kubetrain("--debug", "status")
    assert (refused.exit_code, "authentication failed" in refused.output) == (1, True)
    assert_no_secret(server, done.output, failed.output, misused.output, scheduled.output, refused.output)


def test_ctrl_c_leaves_the_run_alone_and_prints_the_next_commands(server: KfpServer) -> None:
    server.next_story = [json.loads((RECORDED / "run_running.json").read_text())]
    process = start(*SUBMIT)
    started = read_until(process, "run ")
    while not any(re.match(r"GET /apis/v2beta1/runs/[^/?]+$", each) for each in server.requests):
        time.sleep(0.01)
    ended = interrupt(process)
    (run_id,) = server.kinds["runs"]
    assert ended.exit_code == 130, ended.output
    assert f"run {run_id} continues: follow it with `kubetrain status {run_id} --watch`, cancel it with" in ended.output
    assert ended.output.endswith("stopped\n")
    assert not [each for each in server.requests if "terminate" in each]
    assert_no_secret(server, started, ended.output)


@pytest.mark.parametrize(("with_signal", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(
    ("is_refused", "says"),
    [(False, "schedule 'nightly' is enabled: every 86400 s"), (True, "error: .* the replacement was undone")],
    ids=["succeeds", "fails"],
)
def test_a_replacement_that_is_interrupted_says_what_became_of_it(
    server: KfpServer, is_refused: bool, says: str, with_signal: signal.Signals, exit_code: int
) -> None:
    command = ("schedule", "create", *SUBMIT[1:], "--name", "nightly", "--every")
    assert kubetrain(*command, "6h").exit_code == 0

    def interrupt_process(handler: Handler) -> bool:
        os.killpg(process.pid, with_signal)
        return is_refused and answer(403, "quota exceeded")(handler)

    server.fail(":enable", interrupt_process)
    process = start(*command, "1d")
    output, _ = process.communicate()
    assert process.returncode == exit_code, output
    assert re.search(f"^stopping after the schedule is replaced: .*\\n+{says}\n+stopped\n\\Z", output, re.M), output
    (left,) = (each["trigger"]["periodic_schedule"] for each in server.schedules)
    assert left == {"interval_second": "21600" if is_refused else "86400"}
