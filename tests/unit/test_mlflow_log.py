"""A training's copy in MLflow never costs the training anything, whatever the server does."""

import json
import logging
import os
import threading
import time
from pathlib import Path

import pytest

from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting import mlflow_client, mlflow_log
from kubetrain_trainer.reporting.metrics_log import MetricsLog
from kubetrain_trainer.reporting.mlflow_client import LoggedRun
from kubetrain_trainer.reporting.mlflow_log import MlflowLog, Target, log_to_mlflow
from kubetrain_trainer.settings.config import TrainConfig
from support.certificates import Authority
from support.mlflow import strange_server
from support.prometheus import wait_until

REFUSAL = json.dumps({"error_code": "PERMISSION_DENIED", "message": "the token has expired"})
WRONG_HOST = "Invalid Host header - possible DNS rebinding attack detected"
SECRET = "not-for-the-log"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(mlflow_log, "SEND_SECONDS", 0.02)
    monkeypatch.setattr(mlflow_log, "END_SECONDS", 0.5)
    caplog.set_level(logging.INFO)


def output(path: Path) -> TrainingOutput:
    MetricsLog(path / "metrics.jsonl", 0).append({"step": 1, "loss": 0.5})
    return TrainingOutput(path)


def begin(path: Path, address: str, **environment: str) -> MlflowLog:
    return MlflowLog(Target(address), TrainConfig(), output(path), environment)


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (500, "", "500 Internal Server Error"),
        (429, "", "429 Too Many Requests"),
        (200, "<html>log in</html>", "not valid JSON"),
        (200, "[]", "not MLflow's"),
        (404, "default backend - 404", "default backend - 404"),
    ],
)
def test_a_server_that_may_recover_is_asked_again_and_reported_once(
    status: int, body: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with strange_server(status, body, content_type="text/plain" if status == 404 else "") as server:
        copy = begin(tmp_path, server.address)
        wait_until(lambda: len(server.headers) >= 4)
        assert [server.address in each and reason in each for each in caplog.messages] == [True]
        copy.end(1)
    assert "the end of the training is missing" in caplog.messages[-1]
    assert len(caplog.messages) == 2


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [(401, REFUSAL, "the token has expired"), (403, "", "Forbidden"), (403, WRONG_HOST, f"403 {WRONG_HOST}")],
)
def test_a_server_that_refuses_is_given_up(
    status: int, body: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with strange_server(status, body, content_type="text/plain" if body == WRONG_HOST else "") as server:
        copy = begin(tmp_path, server.address, MLFLOW_TRACKING_TOKEN=SECRET)
        wait_until(lambda: not copy._thread.is_alive())
        assert [each["Authorization"] for each in server.headers] == [f"Bearer {SECRET}"] * 2  # creates, then looks up
        copy.end(1)
    assert [server.address in each and reason in each for each in caplog.messages] == [True]
    assert SECRET not in caplog.text


def test_a_server_that_never_answers_delays_the_end_by_seconds_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with strange_server(200, hangs=True) as server:
        copy = begin(tmp_path, server.address)
        wait_until(lambda: server.headers)
        began = time.monotonic()
        copy.end(0)
        assert time.monotonic() - began < mlflow_client.TIMEOUT_SECONDS / 2
    assert "the end of the training is missing" in caplog.text


def test_no_server_at_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    copy = begin(tmp_path, f"http://127.0.0.1:{free_ports(1)[0]}")
    wait_until(lambda: caplog.messages)
    assert "Connection refused" in caplog.text
    copy.end(0)


@pytest.mark.parametrize(
    ("environment", "header"),
    [
        ({"MLFLOW_TRACKING_USERNAME": "ada", "MLFLOW_TRACKING_PASSWORD": "x:y"}, "Basic YWRhOng6eQ=="),
        ({"MLFLOW_TRACKING_TOKEN": SECRET, "MLFLOW_TRACKING_AUTH": "kubernetes"}, f"Bearer {SECRET}"),
        ({"MLFLOW_TRACKING_AUTH": "kubernetes-namespaced"}, "Bearer of-the-pod"),
        ({}, None),
    ],
)
def test_credentials_come_from_the_environment(
    environment: dict[str, str], header: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("of-the-pod\n")
    monkeypatch.setattr(mlflow_client, "SERVICE_ACCOUNT_TOKEN", tmp_path / "token")
    with strange_server(403) as server:
        begin(tmp_path, server.address, **environment, MLFLOW_WORKSPACE="team").end(0)
        wait_until(lambda: server.headers)
    assert server.headers[0].get("Authorization") == header
    assert server.headers[0]["X-Mlflow-Workspace"] == "team"


def test_a_pod_without_a_token_is_told_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mlflow_client, "SERVICE_ACCOUNT_TOKEN", tmp_path / "none")
    copy = begin(tmp_path, "http://127.0.0.1:1", MLFLOW_TRACKING_AUTH="kubernetes")
    wait_until(lambda: not copy._thread.is_alive())
    assert "serviceAccountName" in caplog.text


@pytest.mark.parametrize(("is_trusted", "reason"), [(True, "403 Forbidden"), (False, "certificate verify failed")])
def test_a_ca_of_your_own_is_trusted_by_the_variable_of_mlflow(
    is_trusted: bool, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority()
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    environment = {"MLFLOW_TRACKING_SERVER_CERT_PATH": str(tmp_path / "ca.pem")} if is_trusted else {}
    with strange_server(403, tls=authority.signed("mlflow", "127.0.0.1").server_context(tmp_path)) as server:
        copy = begin(tmp_path, server.address, **environment)
        wait_until(lambda: caplog.messages)
        copy.end(0)
    assert reason in caplog.messages[0]


def test_credentials_follow_no_redirect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with strange_server(200, "{}") as other:
        for status in (302, 307):
            with strange_server(status, location=f"{other.address}/login") as server:
                copy = begin(tmp_path, server.address, MLFLOW_TRACKING_TOKEN=SECRET)
                wait_until(lambda: not copy._thread.is_alive())  # noqa: B023 - called at once
    assert other.headers == []
    assert "302 Found" in caplog.text


@pytest.mark.parametrize(
    "address",
    [
        "sqlite:///mlflow.db",
        "databricks",
        "https://",
        "http://mlflow:0",
        "http://[",
        "http://mlflow?x=1",
        "http://m:x",
        "http://m/a b",
    ],
)
def test_other_addresses_are_refused(address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log_to_mlflow(TrainConfig(), output(tmp_path), {"MLFLOW_TRACKING_URI": address})
    assert "not logged to MLflow: MLFLOW_TRACKING_URI must" in caplog.text


@pytest.mark.parametrize(
    "form", ["https://ada:{}@mlflow", "ada:{}@mlflow", "https://mlflow?token={}", "http://a:{}@[::"]
)
def test_an_address_with_a_password_is_refused_without_repeating_it(
    form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = form.format(SECRET)
    log_to_mlflow(TrainConfig(), output(tmp_path), {"MLFLOW_TRACKING_URI": address, "MLFLOW_RUN_ID": "7"})
    assert "MLFLOW_TRACKING_PASSWORD" in caplog.text
    assert SECRET not in caplog.text


def test_without_a_server_nothing_is_logged(tmp_path: Path) -> None:
    log_to_mlflow(TrainConfig(), output(tmp_path), {})
    assert not [thread for thread in threading.enumerate() if thread.name == "mlflow"]


def test_a_row_that_names_a_slow_process_is_logged_without_it() -> None:
    row = {"step": 3, "loss": 0.5, "accuracy": None, "stragglers": [{"rank": 1, "node": "n1"}]}
    assert [(each["key"], each["value"]) for each in mlflow_log._metrics_of([row], {})] == [("loss", 0.5)]


def test_a_long_log_is_read_in_blocks_of_whole_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_log, "BLOCK_BYTES", 40)
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}}}\n' for step in range(20)) + '{"step": 2')
    end, blocks = 0, []
    while (block := mlflow_log._read_rows(path, end))[1]:
        end, rows = block
        blocks.append([row["step"] for row in rows])
    assert [step for block in blocks for step in block] == [*range(20)]
    assert max(map(len, blocks)) == 3


def test_arguments_of_the_model_have_names_that_mlflow_accepts() -> None:
    run = LoggedRun(id="1", experiment="0", parameters=frozenset(), steps={})
    logged = mlflow_log._parameters(TrainConfig(model="own:build", model_args={"größe (m²)": 2}), run)
    assert [each for each in logged if each["key"].startswith("model_args")] == [
        {"key": "model_args.gr__e _m__", "value": "2"}
    ]


def test_one_run_is_created_even_if_the_disk_is_full_for_a_moment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / f".{mlflow_log.RECORD}.{os.getpid()}.tmp").symlink_to("/dev/full")  # removed after the first write
    with strange_server(200, '{"experiment_id": "1", "run": {"info": {"run_id": "7"}}}') as server:
        copy = begin(tmp_path, server.address)
        wait_until(lambda: not copy._thread.is_alive())
    assert "No space left on device" in caplog.text
    assert len(server.headers) == 4, "create the experiment, look for the run, create it, read it"


def test_an_unknown_answer_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with strange_server(200, '{"experiment_id": 1, "run": "?"}') as server:
        copy = begin(tmp_path, server.address)
        wait_until(lambda: not copy._thread.is_alive())
    assert "the answer is not MLflow's" in caplog.text
