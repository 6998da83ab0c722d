"""A transformer of 1.07 billion parameters with AdamW: use of the GPU, stall of a save, stop and resume, memory."""

import resource
import signal
import statistics
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from figures import Figure, run
from language_model import Shape
from trainings import printed, running, saves, seconds_until, steps

DATASHEET = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}
"""Dense bf16 operations per second, by a part of the GPU's name. Of other GPUs a large product is measured."""
BATCH, CHECKPOINT_EVERY, STOP_AFTER, STEPS = 8, 25, 45, 55
HOST_STALL, GPU_STALL = "checkpoint_stall_seconds", "checkpoint_gpu_stall_seconds"
TINY = Shape(layers=2, width=64, heads=2, vocabulary=256, context=64)


def measure(miniature: bool) -> list[Figure]:
    shape = TINY if miniature else Shape()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "transformer")
        stopping, resuming = stop_and_resume(settings(shape), output)
        rows, first_save = steps(output), saves(output)[0]
    step = median_step(rows[10 : CHECKPOINT_EVERY - 1])
    after = max(seconds(row) for row in rows[CHECKPOINT_EVERY : CHECKPOINT_EVERY + 3])
    return [
        Figure(what="median step", value=step, unit="s"),
        Figure(what="MFU, of the datasheet's dense bf16", value=utilization(shape, step), at_least=0.4),
        Figure(what="most memory that PyTorch took", value=memory(rows), unit="GB"),
        Figure(what="the first save, which allocates: the host waits", value=first_save[HOST_STALL], unit="s"),
        Figure(what="… the GPU waits for its copies", value=gpu_stall(rows), unit="s"),
        Figure(what="… longest of the next three steps, less the median", value=after - step, unit="s"),
        Figure(what="SIGTERM to the end, with everything saved", value=stopping, unit="s"),
        Figure(what="start of the command to the first step after the stop", value=resuming, unit="s"),
        Figure(what="most memory of a process on the host", value=host_memory(), unit="GB"),
    ]


def settings(shape: Shape) -> dict[str, Any]:
    return {
        "model": "language_model:build",
        "model_args": asdict(shape),
        "batch_size": BATCH,
        "synthetic_samples": BATCH * STEPS,
        "max_steps": STEPS,
        "epochs": 1,
        "optimizer": "adamw",
        "learning_rate": 1e-4,
        "lr_scaling": "none",
        "metric": "loss",
        "checkpoint_every": CHECKPOINT_EVERY,
        "validate_every": 10 * STEPS,
        "keep_checkpoints": 1,
        "log_every": 1,
        "metrics_port": 0,
    }


def median_step(rows: list[dict[str, Any]]) -> float:
    return statistics.median(seconds(row) for row in rows)


def utilization(shape: Shape, step: float) -> float:
    operations = BATCH * shape.context * shape.operations_per_token / step
    return operations / (peak_operations() if torch.cuda.is_available() else 1e12)


def gpu_stall(rows: list[dict[str, Any]]) -> float:
    """Return the stall of the first save; 0 without a GPU."""
    return next((row[GPU_STALL] for row in rows if GPU_STALL in row), 0.0)


def host_memory() -> float:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6


def seconds(row: dict[str, Any]) -> float:
    return BATCH / float(row["samples_per_second"])


def stop_and_resume(chosen: dict[str, Any], output: Path) -> tuple[float, float]:
    with running(chosen, output) as process:
        seconds_until(lambda: len(steps(output)) >= STOP_AFTER, process)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        printed(process, expected=143)
        stopping = time.monotonic() - began
    reached = steps(output)[-1]["step"]
    with running(chosen, output) as process:
        resuming = seconds_until(lambda: steps(output)[-1]["step"] > reached, process)
        printed(process, expected=0)
    return stopping, resuming


def memory(rows: list[dict[str, Any]]) -> float:
    return max(row.get("gpu_memory_peak_bytes", 0) for row in rows) / 1e9


def peak_operations() -> float:
    name = torch.cuda.get_device_name()
    known = [rate for part, rate in DATASHEET.items() if part in name]
    return known[0] if known else measured_operations()


def measured_operations(size: int = 8192, products: int = 20) -> float:
    one = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    other = torch.randn_like(one)
    for number in range(2 * products):
        if number == products:
            torch.cuda.synchronize()
            began = time.monotonic()
        one @ other
    torch.cuda.synchronize()
    return products * 2 * size**3 / (time.monotonic() - began)


if __name__ == "__main__":
    run(measure)
