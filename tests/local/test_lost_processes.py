"""A training that loses or gains processes soon continues from a checkpoint and logs each step once."""

import contextlib
import time
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

import psutil
import pytest

from kubetrain_trainer.output.checkpoint_layout import complete_checkpoints
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.metrics_log import read_metrics
from support.cli import processes_of, read_until, start
from support.pods import import_seconds, pause_until_next_step, pod_processes
from support.process_groups import elastic_workers, start_python

MAX_PAUSE_SECONDS = 40  # other tests run beside it: benchmarks/trainers/recovery.py measures the pause alone
"""Without the time for imports."""
ELASTIC = ("--set", "pods.min_workers=1")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("framework", "flags", "pod", "signal", "restarted"),
    [
        pytest.param(
            "pytorch", (), "worker-0", SIGTERM, {"master-0", "worker-0"}, id="drained", marks=pytest.mark.thorough
        ),
        pytest.param("pytorch", ELASTIC, "worker-1", SIGKILL, {"worker-1"}, id="elastic-worker-killed"),
        pytest.param(
            "pytorch",
            ELASTIC,
            "worker-0",
            SIGKILL,
            {"worker-0", "worker-1"},
            id="elastic-first-killed",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "pytorch", ELASTIC, "worker-1", SIGTERM, {"worker-1"}, id="elastic-drained", marks=pytest.mark.thorough
        ),
        pytest.param("tensorflow", (), "chief-0", SIGKILL, {"chief-0", "worker-0"}, id="tensorflow-chief-killed"),
    ],
)
def test_a_training_continues_after_the_loss_of_a_pod(
    framework: str,
    flags: tuple[str, ...],
    pod: str,
    signal: Signals,
    restarted: set[str],
    digits: Path,
    tmp_path: Path,
) -> None:
    settings = ("--set", "train.epochs=6", "--set", "train.checkpoint_every=10", "--set", "train.log_every=5")
    run = start(
        *("train", f"train-{framework}", "--data", digits, "--output", tmp_path, "--run-id", "run"),
        *(*flags, *settings),
    )
    seen = read_until(run, "[kubetrain] step=35/")
    processes = pod_processes(pod, tmp_path)
    for process in processes[:1] if signal == SIGTERM else processes:  # a kubelet signals only the first
        process.send_signal(signal)
    pause = pause_until_next_step(run)
    rest, _ = run.communicate(timeout=200)
    assert run.returncode == 0, seen + pause.output + rest
    assert pause.seconds - import_seconds(framework) < MAX_PAUSE_SECONDS, pause.output

    notices = [line for line in pause.output.splitlines() if line.endswith("; restarting")]
    assert {line[1 : line.index("]")] for line in notices} == restarted
    if signal == SIGTERM:
        assert "stopped by SIGTERM after step" in pause.output
        assert all("(exit code 143)" in line for line in notices)
    output = TrainingOutput(tmp_path / "run")
    assert complete_checkpoints(output.checkpoints)[-1].progress.epoch == 6
    steps = [row["step"] for row in read_metrics(output.metrics) if "loss" in row]
    assert steps == sorted(set(steps)), "each step is logged once"
    assert set(range(5, steps[-1] + 1, 5)) <= set(steps)
    assert processes_of(tmp_path) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("framework", "pod"), [("pytorch", "master-0"), ("pytorch", "worker-0"), ("tensorflow", "chief-0")]
)
def test_a_pod_that_is_lost_when_the_training_is_complete_costs_no_more_than_its_restart(
    framework: str, pod: str, digits: Path, tmp_path: Path
) -> None:
    """It would wait for pods that have ended, or these for it."""
    settings = ("--set", "train.epochs=1", "--set", "train.log_every=5", "--set", "train.metrics_port=0")
    output = ("--output", tmp_path, "--run-id", "run")
    run = start("train", f"train-{framework}", "--data", digits, *output, *settings)
    read_until(run, "[kubetrain] step=5/")
    processes = pod_processes(pod, tmp_path)
    while TrainingOutput(tmp_path / "run").read_result() is None:
        time.sleep(0.002)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    rest, _ = run.communicate(timeout=90)
    assert run.returncode == 0, rest
    assert f"[{pod}] was killed by SIGKILL (exit code 137); restarting" in rest
    assert framework == "tensorflow" or "this pod only reports its result" in rest


@pytest.mark.thorough
def test_a_worker_that_joins_late_continues_from_the_step_of_the_others(digits: Path, tmp_path: Path) -> None:
    command, both = elastic_workers(digits, tmp_path)

    first = start_python(*command[1:], cwd=tmp_path, **both[0])
    assert "1 process," in read_until(first, "[kubetrain] step=20/")
    second = start_python(*command[1:], cwd=tmp_path, **both[1])
    pause = pause_until_next_step(first)
    for process in (first, second):
        process.send_signal(SIGTERM)
    ends = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [143, 143], ends
    assert pause.seconds - import_seconds("pytorch") < MAX_PAUSE_SECONDS, pause.output

    stopped_at = int(pause.output.partition("stopped by SIGTERM after step ")[2].partition(":")[0])
    assert f"rank 0 resumes from {tmp_path}/checkpoints/step-{stopped_at:08}" in pause.output
    assert "2 processes," in pause.output
    steps = [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl") if "loss" in row]
    assert steps == sorted(set(steps)), "each step is logged once"
    assert stopped_at in steps
