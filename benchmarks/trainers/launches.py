"""Run trainings as separate processes and read their images per second."""

import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.settings.model_names import LIBRARIES

UNTIMED_STEPS = 2
"""Untimed steps at the start of each launch, while caches are cold."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
"""Threads per process, unless the environment sets them: TensorFlow's script is slower with its default."""

Command = tuple[Sequence[str], Mapping[str, str]]
"""Arguments, and additions to this process's environment."""


def run_together(commands: Sequence[Command]) -> list[str]:
    """Return the output of each; if one fails, stop the others."""
    with ExitStack() as started:
        processes = []
        for arguments, environment in commands:
            output = started.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(
                arguments, env={**ONE_THREAD, **os.environ, **environment}, stdout=output, stderr=subprocess.STDOUT
            )
            started.callback(process.kill)
            processes.append((process, output))
        return [printed(process, output) for process, output in processes]


def output_of(command: Sequence[Any]) -> str:
    """Return what a command prints, apart from its errors, which are shown if it fails."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{command}\n{ended.stderr}\nexit code {ended.returncode}")
    return ended.stdout


def printed(process: subprocess.Popen[bytes], output: Any) -> str:
    code = process.wait()
    output.seek(0)
    text = str(output.read())
    if code:
        raise SystemExit(f"{process.args}\n{text}\nexit code {code}")
    return text


def python_program(framework: str, program: Sequence[str], processes: int = 1) -> list[Command]:
    """Return the commands that start a framework's program: torchrun, or one process per TF_CONFIG entry."""
    if framework == "pytorch":
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        return [([*torchrun, *program], {})]
    addresses = [f"127.0.0.1:{port}" for port in free_ports(processes)]
    cluster = {"worker": addresses}
    tasks = [{"cluster": cluster, "task": {"type": "worker", "index": index}} for index in range(processes)]
    return [
        ([sys.executable, *program], {"TF_CONFIG": json.dumps(task), "TF_CPP_MIN_LOG_LEVEL": "2"}) for task in tasks
    ]


def free_ports(count: int) -> list[int]:
    with ExitStack() as sockets:
        return [sockets.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


def our_training(
    framework: str, settings: Mapping[str, Any], output: Path, data_dir: Path, processes: int = 1
) -> list[Command]:
    flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    program = our_program(framework, "train", output, data_dir)
    return python_program(framework, [*program, *flags], processes)


def our_evaluation(framework: str, output: Path, data_dir: Path) -> Command:
    return [sys.executable, *our_program(framework, "evaluate", output, data_dir)], {}


def our_program(framework: str, program: str, output: Path, data_dir: Path) -> list[str]:
    places = ["--data-dir", str(data_dir), "--output-dir", str(output)]
    return ["-m", f"{package_of(framework)}.{program}", *places]


def measured_settings(
    framework: str, model: str, pixels: int, batch: int, steps: int, processes: int
) -> dict[str, Any]:
    """Settings of a measured training: data from memory, only steps, one line of metrics per step."""
    return {
        "model": f"{LIBRARIES[framework][0]}:{model}",
        "image_size": pixels,
        "batch_size": batch,
        "data": "synthetic",
        "synthetic": {"samples": images_needed(batch, steps, processes), "classes": 1000},
        "max_steps": steps + UNTIMED_STEPS,
        "epochs": 1,
        "clip_norm": 0,
        "log_every": 1,
        "checkpoint_every": 10 * (steps + UNTIMED_STEPS),
        "metrics_port": 0,
    }


def images_needed(batch: int, steps: int, processes: int) -> int:
    return batch * processes * (steps + UNTIMED_STEPS)


def our_rate(output: Path) -> float:
    """Return the median over the timed steps in metrics.jsonl, and remove the output."""
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(output)
    rates = [row["samples_per_second"] for row in rows if "loss" in row and row["step"] > UNTIMED_STEPS]
    return float(statistics.median(rates))


def printed_rate(texts: Sequence[str]) -> float:
    """Return the figure that a textbook script prints."""
    return float(re.findall(r"images_per_second=([\d.]+)", "".join(texts))[-1])
