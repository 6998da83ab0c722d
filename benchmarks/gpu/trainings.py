"""Trainings as a pod starts them, and what their metrics say."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from launches import our_program

from kubetrain_trainer.reporting.metrics_log import read_metrics
from kubetrain_trainer.settings.config import TrainConfig

HERE = Path(__file__).parent
WAIT_SECONDS = 300


def command(settings: Mapping[str, Any], output: Path, data_dir: Path | None = None) -> list[str]:
    launch = [
        sys.executable,
        "-m",
        "kubetrain_trainer.pytorch_ddp.launching.launch",
        "--standalone",
        "--nproc-per-node",
        "1",
    ]
    program = our_program("pytorch", "train", output, data_dir or output.parent)
    return [*launch, *program, *TrainConfig.from_dict(dict(settings)).to_flags()]


def train(settings: Mapping[str, Any], output: Path, data_dir: Path | None = None) -> None:
    with running(settings, output, data_dir) as process:
        printed(process, expected=0)


@contextlib.contextmanager
def running(
    settings: Mapping[str, Any], output: Path, data_dir: Path | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """Start a training, and end it with the context."""
    output.parent.mkdir(parents=True, exist_ok=True)
    log = output.with_suffix(".log").open("a+")
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen(
        command(settings, output, data_dir),
        stdout=log,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    process.stdout = log  # the log is read when the process has ended
    try:
        yield process
    finally:
        end([process.pid, *started_by(process.pid)])
        process.wait()
        log.close()


def started_by(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have, which torchrun puts into sessions."""
    children = [int(each) for path in Path(f"/proc/{pid}/task").glob("*/children") for each in path.read_text().split()]
    return [descendant for child in children for descendant in (child, *started_by(child))]


def end(pids: list[int]) -> None:
    """Kill the processes, the first one first, so that it starts no more, and wait up to ten seconds for the others."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids[1:]) and time.monotonic() < deadline:
        time.sleep(0.02)


def printed(process: "subprocess.Popen[str]", expected: int) -> str:
    """Return what the process printed until it ended.

    Raises:
        SystemExit: if it ended with another exit code.
    """
    code = process.wait()
    process.stdout.seek(0)
    text = process.stdout.read()
    if code != expected:
        sys.exit(f"{' '.join(map(str, process.args))}\n{text}\nexit code {code}, not {expected}")
    return text


def steps(output: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics that report steps."""
    return [row for row in read_metrics(output / "metrics.jsonl") if "loss" in row]


def saves(output: Path) -> list[dict[str, Any]]:
    return [row for row in read_metrics(output / "metrics.jsonl") if "checkpoint_stall_seconds" in row]


def rate(output: Path, untimed_steps: int) -> float:
    """Return the samples per second of all steps after the first ones: their number by their time."""
    seconds, count = 0.0, 0
    for before, row in zip([{"step": 0}, *steps(output)], steps(output), strict=False):
        if before["step"] >= untimed_steps:
            count += row["step"] - before["step"]
            seconds += (row["step"] - before["step"]) / row["samples_per_second"]
    return count / seconds


def seconds_until(condition: Callable[[], Any], process: "subprocess.Popen[str]") -> float:
    """Wait until the condition holds.

    Raises:
        SystemExit: if the process ends before.
    """
    began = time.monotonic()
    while not condition():
        if process.poll() is not None and not condition():
            sys.exit(printed(process, expected=-1))
        if time.monotonic() - began > WAIT_SECONDS:
            sys.exit(f"nothing happened within {WAIT_SECONDS} s: {process.args}")
        time.sleep(0.02)
    return time.monotonic() - began


def stop_and_resume(settings: Mapping[str, Any], output: Path, stop_after: int) -> tuple[float, float, float]:
    """Stop a training after this step, and train to the end.

    Return the seconds from its start to its first step, from the signal to its end, and from the second start to the
    next step.
    """
    with running(settings, output) as process:
        first = seconds_until(lambda: steps(output), process)
        seconds_until(lambda: steps(output)[-1]["step"] >= stop_after, process)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        printed(process, expected=143)
        stop = time.monotonic() - began
    reached = steps(output)[-1]["step"]
    with running(settings, output) as process:
        resumed = seconds_until(lambda: steps(output)[-1]["step"] > reached, process)
        printed(process, expected=0)
    return first, stop, resumed


def gpu_memory(output: Path) -> float:
    """Return the most memory that PyTorch took, in GB; 0 without a GPU."""
    return float(max(row.get("gpu_memory_peak_bytes", 0) for row in steps(output))) / 1e9
