"""Trainings in a real MLflow server: each step once, although trainings and servers are killed and come back."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting import mlflow_log
from kubetrain_trainer.reporting.metrics_log import MetricsLog, read_metrics
from kubetrain_trainer.reporting.mlflow_log import MlflowLog, Target
from kubetrain_trainer.settings.config import TrainConfig
from support.cli import kubetrain, read_until, start
from support.mlflow import MlflowServer, losing_answers, parameters_of
from support.prometheus import wait_until
from support.tiers import ONE_IN_CI

WAIT_IN_SECOND_START = """
import pathlib, sys, time
wait, mark = lambda: time.sleep(60), pathlib.Path(__file__).with_suffix(".failed")
if mark.exists():
    wait()
"""
"""The start over the limit of restarts, which kubetrain ends when it notices it."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_log, "SEND_SECONDS", 0.02)
    monkeypatch.setattr(mlflow_log, "MAX_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(mlflow_log, "END_SECONDS", 60)


def log_to(address: str, experiment: str, patch: pytest.MonkeyPatch) -> None:
    """Let the processes that this test starts log to this server."""
    patch.setenv("MLFLOW_TRACKING_URI", address)
    patch.setenv("MLFLOW_EXPERIMENT_NAME", experiment)


def copy_of(path: Path, address: str, run_id: str = "", **settings: Any) -> MlflowLog:
    environment = {"MLFLOW_EXPERIMENT_NAME": path.name}
    return MlflowLog(Target(address, run_id), TrainConfig.from_dict(settings), TrainingOutput(path), environment)


def only_run(server: MlflowServer, experiment: str) -> dict[str, Any]:
    (run,) = server.runs(experiment)
    return run


def assert_same_curves(server: MlflowServer, run: dict[str, Any], output: Path) -> None:
    """Check that MLflow has each number of metrics.jsonl, once. Two rows of a checkpoint's step have the epoch."""
    rows = list(read_metrics(output / "metrics.jsonl"))
    names = {name for row in rows for name in row} - {"step"}
    assert {each["key"] for each in run["data"]["metrics"]} == names
    for name in names - {"epoch"}:
        measured = [(row["step"], row[name]) for row in rows if name in row]
        assert sorted(server.curve(run["info"]["run_id"], name)) == sorted(measured)


@pytest.mark.parametrize("framework", ONE_IN_CI)
def test_a_training_that_is_killed_and_resumed_is_one_run_with_each_step_once(
    framework: str, server: MlflowServer, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_to(server.address, framework, monkeypatch)
    arguments = [
        *("train", f"train-{framework}", "--data", digits, "--output", tmp_path, "--run-id", "killed"),
        *("--set", "train.epochs=3", "--set", "train.checkpoint_every=10"),
        *("--set", "train.log_every=5", "--set", "train.metrics_port=0"),
    ]
    run = start(*arguments)
    read_until(run, "[kubetrain] step=35/60")
    os.killpg(run.pid, signal.SIGINT)
    run.communicate(timeout=90)
    wait_until(lambda: only_run(server, framework)["info"]["status"] == "KILLED")

    resumed = kubetrain(*arguments)
    assert resumed.exit_code == 0, resumed.output
    copied = only_run(server, framework)
    assert (copied["info"]["run_name"], copied["info"]["status"]) == ("killed", "FINISHED")
    assert parameters_of(copied) | {"epochs": "3", "seed": "0", "model": "digits_cnn"} == parameters_of(copied)
    assert f"/runs/{copied['info']['run_id']}" in resumed.output
    assert_same_curves(server, copied, tmp_path / "killed")


def test_a_failed_training_and_its_script(
    server: MlflowServer, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_to(server.address, "script", monkeypatch)
    (tmp_path / "train.py").write_text(
        WAIT_IN_SECOND_START + "from kubetrain_trainer import session\nsession.log(1, loss=0.5)\n"
        "session.log(2, loss=float('nan'), f1=0.25)\nmark.touch()\nraise ValueError('broken')\n"
    )
    failed = kubetrain(
        *("train", "train-pytorch", "--data", digits, "--output", tmp_path, "--run-id", "failed"),
        *("--set", "pods.workers=1", "--set", f"train.entry={tmp_path / 'train.py'}"),
        *("--set", "train.metrics_port=0", "--set", "pods.max_restarts=0"),
    )
    assert failed.exit_code == 1
    run = only_run(server, "script")
    assert run["info"]["status"] == "FAILED"
    assert server.curve(run["info"]["run_id"], "loss") == [(1, 0.5)]
    assert server.curve(run["info"]["run_id"], "f1") == [(2, 0.25)]
    assert "entry" not in parameters_of(run)


def test_a_server_that_is_killed_misses_nothing(quick: None, server: MlflowServer, tmp_path: Path) -> None:
    """What is measured while it is away arrives when it is back."""
    rows = MetricsLog(tmp_path / "metrics.jsonl", 0)
    copy = copy_of(tmp_path, server.address)
    for step in range(1, 31):
        rows.append({"step": step, "loss": 1 / step})
        if step == 10:
            wait_until((tmp_path / "mlflow.json").exists)
            server.kill()
        if step == 20:
            server.start()
    copy.end(1)
    run = only_run(server, tmp_path.name)
    assert run["info"]["status"] == "FAILED"
    assert_same_curves(server, run, tmp_path)


def test_what_the_server_took_without_an_answer_is_not_sent_again(
    quick: None, server: MlflowServer, tmp_path: Path
) -> None:
    MetricsLog(tmp_path / "metrics.jsonl", 0).append({"step": 1, "loss": 0.5, "epoch": 0})
    with losing_answers(server, "runs/log-batch", b'"metrics"') as address:
        copy = copy_of(tmp_path, address)
        wait_until(lambda: copy._has_warned and copy._run)
        copy.end(0)
    assert_same_curves(server, only_run(server, tmp_path.name), tmp_path)


def test_a_run_whose_creation_was_not_confirmed_is_found(quick: None, server: MlflowServer, tmp_path: Path) -> None:
    """Else each try would leave another run that never ends."""
    MetricsLog(tmp_path / "metrics.jsonl", 0).append({"step": 1, "loss": 0.5})
    with losing_answers(server, "runs/create") as address:
        copy = copy_of(tmp_path, address)
        wait_until(lambda: copy._run)
        copy.end(143)
    run = only_run(server, tmp_path.name)
    assert run["info"]["status"] == "KILLED"
    assert_same_curves(server, run, tmp_path)


def test_a_training_whose_run_was_deleted_gets_a_new_one(quick: None, server: MlflowServer, tmp_path: Path) -> None:
    rows = MetricsLog(tmp_path / "metrics.jsonl", 0)
    for step in (1, 2):
        rows.append({"step": step, "loss": 1 / step})
        copy_of(tmp_path, server.address).end(1)
        run = only_run(server, tmp_path.name)
        assert_same_curves(server, run, tmp_path)
        server.delete(run["info"]["run_id"])


def test_any_name_of_a_metric_is_logged(quick: None, server: MlflowServer, tmp_path: Path) -> None:
    names = {"a//b": "a/b", "/abs": "abs", "./x/../y/": "x/y", "..": "_", "": "_", "n" * 300: "n" * 250}
    MetricsLog(tmp_path / "metrics.jsonl", 0).append({"step": 1, **dict.fromkeys(names, 0.5)})
    copy_of(tmp_path, server.address, model_args={"a//b": 2}).end(0)
    run = only_run(server, tmp_path.name)
    assert {each["key"] for each in run["data"]["metrics"]} == {*names.values()}
    assert parameters_of(run)["model_args.a/b"] == "2"


@pytest.mark.parametrize(("ends", "status"), [("", "FINISHED"), ("fail()", "FAILED"), ("wait()", "KILLED")])
def test_a_command_that_logs_ends_with_its_training(
    ends: str, status: str, server: MlflowServer, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that logs knows neither whether the training succeeds, nor of a SIGTERM that ends it at once.

    One that fails is restarted, and ended in that second start before it logs.
    """
    log_to(server.address, tmp_path.name, monkeypatch)
    (tmp_path / "train.py").write_text(
        WAIT_IN_SECOND_START + "import os\nfrom kubetrain_trainer import session\n"
        "def fail():\n    mark.touch()\n    sys.exit(3)\n"
        "for step in range(1, 6):\n    session.log(step, loss=1 / step)\n"
        f"{ends}\nmodel = pathlib.Path(os.environ['KUBETRAIN_OUTPUT'], 'export')\n"
        "(model / 'model.bin').write_text('1')\n"
    )
    run = start(
        *("train", "train-pytorch", "--data", digits, "--output", tmp_path, "--run-id", "own"),
        *("--set", f"train.entry={sys.executable} {tmp_path / 'train.py'}", "--set", "train.metrics_port=0"),
        *("--set", "pods.workers=1", "--set", "pods.max_restarts=0"),
    )
    read_until(run, "[kubetrain] step=5")
    if status == "KILLED":
        os.killpg(run.pid, signal.SIGINT)
    run.communicate(timeout=90)
    copied = only_run(server, tmp_path.name)
    assert copied["info"]["status"] == status
    assert_same_curves(server, copied, tmp_path / "own")


def test_a_resumed_training_does_not_log_a_step_twice(quick: None, server: MlflowServer, tmp_path: Path) -> None:
    """The steps after its checkpoint are measured again."""
    for resumed_step in (0, 4, 8):
        rows = MetricsLog(tmp_path / "metrics.jsonl", resumed_step)
        for step in range(resumed_step + 1, resumed_step + 7):
            rows.append({"step": step, "loss": step / 2, "epoch": 0})
        # A changed setting is refused by MLflow.
        copy_of(tmp_path, server.address, checkpoint_every=resumed_step + 1).end(143)
    assert_same_curves(server, only_run(server, tmp_path.name), tmp_path)


def test_a_new_server_gets_the_whole_training(quick: None, server: MlflowServer, tmp_path: Path) -> None:
    MetricsLog(tmp_path / "metrics.jsonl", 0).append({"step": 1, "loss": 0.5})
    (tmp_path / "mlflow.json").write_text('{"address": "http://another", "run_id": "7"}')
    copy_of(tmp_path, server.address).end(0)
    assert_same_curves(server, only_run(server, tmp_path.name), tmp_path)


def test_a_run_of_kubeflow_pipelines_is_written_to_but_not_ended(
    quick: None, server: MlflowServer, tmp_path: Path
) -> None:
    run_id = server.create_run()
    MetricsLog(tmp_path / "metrics.jsonl", 0).append({"step": 1, "loss": 0.5})
    copy_of(tmp_path, server.address, run_id).end(0)
    run = server.run(run_id)
    assert (run["info"]["status"], run["info"]["run_name"]) == ("RUNNING", "a step")
    assert not (tmp_path / "mlflow.json").exists()
    assert_same_curves(server, run, tmp_path)


def test_more_than_a_request_may_hold(quick: None, server: MlflowServer, tmp_path: Path) -> None:
    rows = MetricsLog(tmp_path / "metrics.jsonl", 0)
    for step in range(1, 602):
        rows.append({"step": step, "loss": 0.5, "accuracy@5": 1.0})
    arguments = {**{f"width_{each}": each for each in range(80)}, "token": "a secret", "words": ["x" * 9000]}
    copy_of(tmp_path, server.address, model_args=arguments, freeze="y" * 9000).end(0)
    run = only_run(server, tmp_path.name)
    assert len(server.curve(run["info"]["run_id"], "accuracy_5")) == 601
    found = parameters_of(run)
    assert found["model_args.width_79"] == "79"
    assert found["freeze"] == "y" * mlflow_log.MAX_VALUE_LENGTH
    assert "a secret" not in found.values()


def test_rank_0_alone_writes(
    server: MlflowServer, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_to(server.address, "two", monkeypatch)
    done = kubetrain(
        *("train", "train-pytorch", "--data", digits, "--output", tmp_path, "--run-id", "two"),
        *("--set", "train.max_steps=4", "--set", "train.metrics_port=0"),
    )
    assert done.exit_code == 0, done.output
    assert len(server.runs("two")) == 1
    assert done.output.count("MLflow: ") == 1


def test_a_training_without_a_server_trains(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_to("http://127.0.0.1:1", "none", monkeypatch)
    done = kubetrain(
        *("train", "train-pytorch", "--data", digits, "--output", tmp_path, "--run-id", "alone"),
        *("--set", "train.max_steps=4", "--set", "train.metrics_port=0"),
        *("--set", "pods.workers=1"),
    )
    assert done.exit_code == 0, done.output
    assert done.output.count("not logged to MLflow at http://127.0.0.1:1: ") == 1
