"""The metrics pages of real trainings, also after a process is killed."""

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from kubetrain_components.jobs.local.loopback import free_ports
from support.cli import SOON_SECONDS, interrupt, processes_of, read_until, start
from support.outside import sample, scrape


@contextmanager
def training(framework: str, workers: int, port: int, data: Path, output: Path) -> Iterator["subprocess.Popen[str]"]:
    run = start(
        *("train", f"train-{framework}", "--data", data, "--output", output, "--run-id", "run"),
        *("--set", f"pods.workers={workers}", "--set", f"train.metrics_port={port}", "--set", "train.epochs=1000"),
        *("--set", "train.checkpoint_every=10", "--set", "train.log_every=5", "--set", "train.precision=fp32"),
    )
    try:
        yield run
    finally:
        if run.poll() is None:
            interrupt(run)


def check_page(port: int, workers: int) -> None:
    read = scrape(port)
    assert sample(read, "step") >= 25
    assert 0 < sample(read, "loss") < 3
    assert sample(read, "samples_per_second") > 0
    assert 0 <= sample(read, "data_wait_share") <= 1
    assert 0 < sample(read, "step_seconds", quantile="0.5") <= sample(read, "step_seconds", quantile="0.99")
    assert sample(read, "step_seconds_count") >= 25
    assert sample(read, "checkpoint_stall_seconds_count") >= 1
    assert sample(read, "checkpoint_stall_seconds_sum") > 0
    assert sample(read, "checkpoint_age_seconds") < 10
    assert (sample(read, "processes"), sample(read, "restarts_total")) == (workers, 0)
    assert sample(read, "validation", metric="accuracy") > 0


def chief_at(port: int, output: Path) -> psutil.Process:
    """Return the process that listens on the port."""
    return next(
        process
        for process in processes_of(output)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    )


def test_a_training_of_two_processes_is_scraped_while_it_runs_and_ends_at_ctrl_c(digits: Path, tmp_path: Path) -> None:
    port = free_ports(1)[0]
    with training("pytorch", 2, port, digits, tmp_path) as run:
        seen = read_until(run, "[kubetrain] step=30/")
        check_page(port, workers=2)
        stopped = interrupt(run)
    assert (stopped.exit_code, stopped.seconds < SOON_SECONDS) == (130, True), stopped
    assert "Traceback" not in stopped.output.splitlines()[-1]
    assert processes_of(tmp_path) == []
    assert re.search(r"training starts: PyTorch \S+, 2 processes, gloo over \S+, fp32, \d+ threads? each, \w+", seen)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "workers"), [("pytorch", 2), pytest.param("tensorflow", 1, marks=pytest.mark.thorough)]
)
def test_a_training_is_scraped_again_after_its_chief_was_killed(
    framework: str, workers: int, digits: Path, tmp_path: Path
) -> None:
    port = free_ports(1)[0]
    with training(framework, workers, port, digits, tmp_path) as run:
        assert "training starts: " in read_until(run, "[kubetrain] step=30/")
        check_page(port, workers)
        chief_at(port, tmp_path).send_signal(signal.SIGKILL)
        read_until(run, "resumes from")
        read_until(run, "[kubetrain] step=")
        assert sample(scrape(port), "restarts_total") == 1
