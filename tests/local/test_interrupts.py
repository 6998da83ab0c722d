"""Ctrl-C, SIGTERM or a crash at any stage: everything stops within five seconds, and the next run succeeds."""

import json
import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from kubetrain_components.sync_dataset.publish import published_versions
from kubetrain_pipelines.cli.verify import verify_folder
from support.cli import SOON_SECONDS, interrupt, kubetrain, processes_of, read_until, run_json, start

pytestmark = pytest.mark.slow

SHORT = ("--set", "train.max_steps=5", "--set", "pods.workers=1")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One workspace for all tests, so that each run finds what the interrupted one before it left."""
    return tmp_path_factory.mktemp("interrupted") / "workspace"


def run_arguments(workspace: Path, data: Path | None = None) -> list[str]:
    """Without data the run starts an S3 server first."""
    return ["run", "--workspace", str(workspace), *(["--set", f"data.uri={data}"] if data else [])]


@pytest.mark.parametrize(
    ("line", "stage", "settings"),
    [
        ("prepare_storage: started", "prepare_storage", ()),
        ("sync_dataset: started", "sync_dataset", ()),
        ("launch_training: started", "launch_training", ()),
        ("launch_training: step", "launch_training", ("--set", "train.epochs=1000")),
        ("evaluate_model: started", "evaluate_model", SHORT),
    ],
)
def test_ctrl_c_at_any_stage(workspace: Path, digits: Path, line: str, stage: str, settings: tuple[str, ...]) -> None:
    early = stage in ("prepare_storage", "sync_dataset")
    run = start(*run_arguments(workspace, None if early else digits), *settings)
    read_until(run, line)
    time.sleep(0.3)
    stopped = interrupt(run)
    assert stopped.exit_code == 130
    assert stopped.seconds < SOON_SECONDS
    assert stopped.output.splitlines()[-1] == "stopped"
    assert processes_of(workspace) == []
    record = run_json(workspace)
    assert record["status"] == "stopped"
    assert (record["stages"][-1]["name"], record["stages"][-1]["status"]) == (stage, "stopped")
    assert "Stopped in " + stage in (workspace / "report.html").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("seconds", [0.2, 0.7, 1.2])
def test_a_second_ctrl_c_loses_no_report(workspace: Path, digits: Path, seconds: float) -> None:
    run = start(*run_arguments(workspace, digits), "--set", "train.epochs=1000")
    read_until(run, "launch_training: step")
    os.killpg(run.pid, signal.SIGINT)
    time.sleep(seconds)
    stopped = interrupt(run)
    assert stopped.exit_code in (130, -signal.SIGINT), stopped.output  # the same for a shell: it ends already
    assert run_json(workspace)["status"] == "stopped"
    assert "Stopped in launch_training" in (workspace / "report.html").read_text()
    assert processes_of(workspace) == []


def test_a_stopped_training_is_resumed_with_the_printed_setting(workspace: Path, digits: Path) -> None:
    run = start(*run_arguments(workspace, digits), "--set", "pods.workers=1", "--set", "train.epochs=1000")
    read_until(run, "launch_training: step")
    output = interrupt(run).output
    setting = re.search(
        r"the training saved a checkpoint: (--set train.resume_from=\S+) continues from it\n+stopped\n$", output
    )
    assert setting, output
    resumed = start(
        *run_arguments(workspace, digits), "--set", "pods.workers=1", "--set", "train.epochs=1000", *setting[1].split()
    )
    read_until(resumed, "launch_training: step")
    interrupt(resumed)
    first = json.loads(
        (workspace / "output" / run_json(workspace)["run_id"] / "metrics.jsonl").read_text().split("\n")[0]
    )
    assert first["step"] > 0, first


@pytest.mark.thorough
def test_the_next_run_succeeds(workspace: Path, digits: Path) -> None:
    finished = kubetrain(*run_arguments(workspace, digits), *SHORT)
    assert finished.exit_code == 0, finished.output
    assert len(published_versions(workspace / "staging")) == 1
    assert not [problem for each in verify_folder(workspace / "staging") for problem in each.problems]


def test_sigterm_stops_a_run_in_order(workspace: Path, digits: Path) -> None:
    run = start(*run_arguments(workspace, digits))
    read_until(run, "launch_training: started")
    stopped = interrupt(run, signal.SIGTERM)
    assert (stopped.exit_code, run_json(workspace)["status"]) == (143, "stopped")
    assert processes_of(workspace) == []


@pytest.mark.parametrize("line", ["sync_dataset: started", "launch_training: step"])
def test_a_killed_run_leaves_no_process(workspace: Path, digits: Path, line: str) -> None:
    run = start(*run_arguments(workspace, None if "sync" in line else digits))
    read_until(run, line)
    left = processes_of(workspace)
    assert len(left) >= 3, "the pipeline, a step and its job at least"
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    psutil.wait_procs(left, timeout=60)
    assert [process for process in processes_of(workspace) if process in left] == []


def test_a_stage_that_dies_silently_fails_the_run(workspace: Path, digits: Path) -> None:
    run = start(*run_arguments(workspace, digits))
    read_until(run, "launch_training: started")
    for process in processes_of(workspace):
        if "kfp.dsl.executor_main" in " ".join(process.cmdline()):
            process.kill()
    output, _ = run.communicate(timeout=90)
    assert run.returncode == 1
    assert "no stage reported a cause" in output
    assert json.loads((workspace / "run.json").read_text())["stages"][-1]["status"] == "failed"
    assert processes_of(workspace) == []
