"""Use of the GPU by a transformer of 1.07 billion parameters with AdamW, as it comes and with compile=default."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from figures import Figure, run
from language_model import Shape
from trainings import gpu_memory, running, seconds_until, steps

from kubetrain_trainer.processes import resources

TINY = Shape(layers=2, width=64, heads=2, vocabulary=256, context=64)
BATCH, UNTIMED_STEPS, STEPS = 8, 8, 30


def measure(miniature: bool) -> Iterator[Figure]:
    shape = TINY if miniature else Shape()
    for title, extra in (("as it comes", {}), ("compile=default", {"compile": "default"})):
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder, "transformer")
            with running(settings(shape, BATCH, 10 * STEPS) | extra, output) as process:
                started = seconds_until(lambda output=output: steps(output), process)
                seconds_until(lambda output=output: len(steps(output)) >= STEPS, process)
            step = statistics.median(BATCH / row["samples_per_second"] for row in steps(output)[UNTIMED_STEPS:])
            yield Figure(what=f"{title}: start of the command to the first step", value=started, unit="s")
            yield Figure(what=f"{title}: median step", value=step, unit="s")
            yield Figure(what=f"{title}: MFU, of dense bf16", value=utilization(shape, step), at_least=0.4)
            yield Figure(what=f"{title}: most memory that PyTorch took", value=gpu_memory(output), unit="GB")


def settings(shape: Shape, batch: int, steps: int) -> dict[str, Any]:
    """Return the settings of a training that saves only at its end."""
    return {
        "model": "language_model:build",
        "model_args": asdict(shape),
        "batch_size": batch,
        "synthetic": {"samples": batch * steps},
        "max_steps": steps,
        "epochs": 1,
        "optimizer": "adamw",
        "learning_rate": 1e-4,
        "lr_scaling": "none",
        "metric": "loss",
        "checkpoint_every": 10 * steps,
        "log_every": 1,
        "metrics_port": 0,
    }


def utilization(shape: Shape, step: float) -> float:
    return BATCH * shape.context * shape.operations_per_token / step / peak_operations()


def peak_operations() -> float:
    if not torch.cuda.is_available():
        return 1e12
    return resources.peak_operations(torch.cuda.get_device_name()) or measured_operations()


def measured_operations(size: int = 8192, products: int = 20) -> float:
    one = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    other = torch.randn_like(one)
    for number in range(2 * products):
        if number == products:  # the first ones choose how to multiply
            torch.cuda.synchronize()
            began = time.monotonic()
        one @ other
    torch.cuda.synchronize()
    return products * 2 * size**3 / (time.monotonic() - began)


if __name__ == "__main__":
    run(measure)
