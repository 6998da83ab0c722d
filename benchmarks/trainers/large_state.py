"""Save and resume the state of a sharded transformer of 1.07 billion parameters with AdamW on this machine.

PYTHONPATH=benchmarks/gpu .venv/bin/python benchmarks/trainers/large_state.py [--layers 20] [--width 2048]

Two processes take a step and save it; then two resume from it and take the next step. The whole takes 17 GB of disk and
several minutes. Memory is what all processes have allocated, without the files that they have mapped.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from language_model import Shape
from language_model import build as build_on_device
from trainings import end, started_by, steps

from kubetrain_trainer.pytorch_ddp.task import Task
from kubetrain_trainer.settings.config import TrainConfig

HERE = Path(__file__).parent
SAMPLES = 12
MINUTES = 20


def build(config: TrainConfig, data_dir: Path) -> Task:
    with torch.device("meta"):
        task = build_on_device(config, data_dir)
    # Brought together with the rest of the model, both tables of tokens would be its largest part.
    return replace(task, layers=lambda model: [*model.blocks, model.tokens, model.scores])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--width", type=int, default=2048)
    given = parser.parse_args()
    shape = Shape(layers=given.layers, width=given.width, context=64)
    with tempfile.TemporaryDirectory() as folder:
        save_and_resume(shape, Path(folder))


def save_and_resume(shape: Shape, folder: Path) -> None:
    began = time.perf_counter()
    with training(settings(shape, max_steps=1), folder / "first", processes=2) as first:
        first.wait_for_end()
    report("processes: 2, a step, saved and exported", time.perf_counter() - began, first.peak)
    state = sum(path.stat().st_size for path in folder.glob("first/checkpoints/step-*/state-*"))
    print(f"the state has {state / 1e9:.1f} GB", flush=True)
    began, output = time.perf_counter(), folder / "second"
    with training(settings(shape, max_steps=5, resume_from="first"), output, processes=2) as second:
        second.wait_for_step(output)
    report("processes: 2, resumed, and another step", time.perf_counter() - began, second.peak)
    print(f"losses of both steps: {steps(folder / 'first')[0]['loss']:.6g} and {steps(output)[0]['loss']:.6g}")


def settings(shape: Shape, **changes: Any) -> dict[str, Any]:
    return {
        "model": "large_state:build",
        "model_args": vars(shape),
        "synthetic": {"samples": 20 * SAMPLES},
        "sharding": "full",
        "activation_checkpointing": True,
        "optimizer": "adamw",
        "learning_rate": 1e-4,
        "lr_scaling": "none",
        "schedule": "constant",
        "warmup_epochs": 0,
        "global_batch_size": SAMPLES,
        "batch_size": 4,
        "metric": "loss",
        "select_checkpoint": "last",
        "log_every": 1,
        "metrics_port": 0,
        "nccl_timeout_seconds": 60 * MINUTES,
        **changes,
    }


class Running:
    """A training, and the most memory that its processes had allocated together."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self.peak = 0
        self._watch = threading.Thread(target=self._follow, daemon=True)
        self._watch.start()

    def wait_for_end(self) -> None:
        if code := self._process.wait(60 * MINUTES):
            sys.exit(f"the training ended with {code}")

    def wait_for_step(self, output: Path) -> None:
        while not (output / "metrics.jsonl").exists() or not steps(output):
            if self._process.poll() is not None:
                sys.exit(f"the training ended with {self._process.returncode}")
            time.sleep(0.2)

    def _follow(self) -> None:
        while self._process.poll() is None:
            self.peak = max(self.peak, sum(map(allocated, [self._process.pid, *started_by(self._process.pid)])))
            time.sleep(0.1)


@contextmanager
def training(settings: dict[str, Any], output: Path, processes: int) -> Iterator[Running]:
    command = [
        *(sys.executable, "-m", "kubetrain_trainer.pytorch_ddp.launching.launch", "--standalone"),
        *("--nproc-per-node", str(processes), "-m", "kubetrain_trainer.pytorch_ddp.train"),
        *("--data-dir", str(output.parent), "--output-dir", str(output)),
        *TrainConfig.from_dict(settings).to_flags(),
    ]
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
    try:
        yield Running(process)
    finally:
        end([process.pid, *started_by(process.pid)])
        process.wait()


def allocated(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has ended
        return 0
    return 1024 * sum(int(line.split()[1]) for line in status.splitlines() if line.startswith(("RssAnon", "RssShmem")))


def report(what: str, seconds: float, peak: int) -> None:
    print(f"{what}: {seconds:.0f} s, at most {peak / 1e9:.1f} GB", flush=True)


if __name__ == "__main__":
    main()
