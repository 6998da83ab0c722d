"""Real processes of which one is slow: it is named, with its node and what takes it longer, and no other is."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_trainer.reporting.metrics_log import read_metrics
from kubetrain_trainer.reporting.stragglers import LARGE_DELAY_SHARE, WINDOW_SECONDS, WINDOWS
from support.cli import interrupt, read_until, start
from support.faulty_tasks import FAULTY_TASKS
from support.outside import sample, scrape
from support.process_groups import elastic_workers, start_python

pytestmark = pytest.mark.slow
NOISE = """
import random, time
while True:
    until = time.monotonic() + random.random()
    while time.monotonic() < until:
        pass
    time.sleep(random.random())
"""
SLOW, FAST_AGAIN = " is slow: ", " is no longer slow"


@contextmanager
def training(
    framework: str, folder: Path, model_args: dict[str, Any], port: int = 0
) -> Iterator["subprocess.Popen[str]"]:
    """Train in two processes until the test has seen enough."""
    (folder / "own.py").write_text(FAULTY_TASKS[framework])
    settings = {
        **{"model.name": "own:build", "model.args": json.dumps(model_args), "pods.workers": 2},
        **{"train.metric": "loss", "train.batch_size": 8, "train.epochs": 10000, "train.checkpoint_every": 100000},
        **{"train.log_every": 5, "train.metrics_port": port},
    }
    run = start(
        *("train", f"train-{framework}", "--data", folder, "--output", folder, "--run-id", "run"),
        *(f"--set={name}={value}" for name, value in settings.items()),
        cwd=folder,
        PYTHONPATH=str(folder),
        NODE_NAME="gpu-7",
    )
    try:
        yield run
    finally:
        if run.poll() is None:
            interrupt(run)


def slow_rank(place: str, **more: Any) -> dict[str, Any]:
    """Let rank 1 sleep a quarter of a second for each step."""
    seconds = 0.25 if place == "loss" else 0.25 / 8
    return {"trouble": "sleep", "place": place, "rank": 1, "after": 1, "seconds": seconds, **more}


def measured(folder: Path) -> list[dict[str, Any]]:
    return [row for row in read_metrics(folder / "run" / "metrics.jsonl") if "loss" in row]


@pytest.mark.parametrize(("place", "part"), [("data", "data"), ("loss", "computation")])
@pytest.mark.parametrize("framework", FAULTY_TASKS)
def test_a_slow_process_is_named_in_log_metrics_and_page(framework: str, place: str, part: str, tmp_path: Path) -> None:
    port = free_ports(1)[0]
    with training(framework, tmp_path, slow_rank(place), port) as run:
        seen = read_until(run, SLOW)
        warning = seen.splitlines()[-1]
        assert f"rank 1 on node gpu-7{SLOW}" in warning
        assert f"because its {part} takes 0." in warning
        seen = read_until(run, "[kubetrain] step=") + read_until(run, "[kubetrain] step=")
        assert SLOW not in seen, "it is named once"
        assert sample(scrape(port), "straggler", rank="1", node="gpu-7", part=part) >= LARGE_DELAY_SHARE
    row = measured(tmp_path)[-1]
    assert [(each["rank"], each["node"], each["part"]) for each in row["stragglers"]] == [(1, "gpu-7", part)]
    assert row["stragglers"][0]["delay_share"] >= LARGE_DELAY_SHARE
    assert row["straggler_delay_share"] > 0
    assert row["idle_share"] > 0.3, "rank 0 waits for rank 1"


@pytest.mark.thorough
def test_a_process_that_becomes_fast_again_is_no_longer_named(tmp_path: Path) -> None:
    with training("pytorch", tmp_path, {**slow_rank("loss", until=60), "rank": 0}) as run:
        assert f"rank 0 on node gpu-7{SLOW}" in read_until(run, SLOW)
        read_until(run, FAST_AGAIN)
        read_until(run, "[kubetrain] step=")
    assert "stragglers" not in measured(tmp_path)[-1]


@pytest.mark.thorough
def test_a_restarted_elastic_training_judges_its_processes_anew(digits: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FAULTY_TASKS["pytorch"])
    settings = {"model": "own:build", "metric": "loss", "batch_size": 8, "model_args": slow_rank("loss")}
    command, both = elastic_workers(digits, tmp_path, **settings)
    first = start_python(*command[1:], cwd=tmp_path, **both[0], NODE_NAME="gpu-0")
    second = start_python(*command[1:], cwd=tmp_path, **both[1], NODE_NAME="gpu-1")
    try:
        assert f"rank 1 on node gpu-1{SLOW}" in read_until(first, SLOW)
        kill(second)
        alone = read_until(first, "1 process,") + read_until(first, "[kubetrain] step=50/")
        assert "straggler" not in alone.partition("1 process,")[2]
        second = start_python(*command[1:], cwd=tmp_path, **both[1], NODE_NAME="gpu-2")
        assert f"rank 1 on node gpu-2{SLOW}" in read_until(first, SLOW)
    finally:
        for process in (first, second):
            kill(process)


def kill(process: "subprocess.Popen[str]") -> None:
    for each in [*psutil.Process(process.pid).children(recursive=True), process]:
        each.kill()


@pytest.mark.thorough
def test_equal_processes_on_a_busy_machine_are_not_named(tmp_path: Path) -> None:
    noise = [subprocess.Popen([sys.executable, "-c", NOISE]) for _ in range(2)]
    try:
        with training("pytorch", tmp_path, {"work": 40}) as run:
            seen = ""
            while sum(row_seconds(row) for row in measured(tmp_path)) < 2 * WINDOWS * WINDOW_SECONDS:
                seen += read_until(run, "[kubetrain] step=")
    finally:
        for each in noise:
            each.kill()
    assert SLOW not in seen


def row_seconds(row: dict[str, Any]) -> float:
    """Return the seconds of five steps of 16 samples."""
    return float(5 * 16 / row["samples_per_second"])
