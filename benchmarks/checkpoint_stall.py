"""Measure how long a save delays training: kubetrain and torch.save in one process, taking turns.

.venv/bin/python benchmarks/checkpoint_stall.py

The state is ResNet-50 with SGD momentum, 205 MB, on a GPU if there is one.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torchvision.models import resnet50

from kubetrain_trainer.output.checkpoint_layout import TrainingProgress, intact_checkpoints
from kubetrain_trainer.output.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.pytorch_ddp.checkpoint import restore, save, state_of
from kubetrain_trainer.pytorch_ddp.group import Group
from kubetrain_trainer.pytorch_ddp.optimizer import Optimizers
from kubetrain_trainer.pytorch_ddp.staging import Staging
from kubetrain_trainer.settings.config import TrainConfig

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class ResNet50:
    def __init__(self) -> None:
        self.model: nn.Module = resnet50().to(DEVICE)
        self.optimizers = Optimizers(torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9))
        self._images = torch.randn(8, 3, 64, 64, device=DEVICE)

    def take_step(self) -> None:
        self.optimizers.zero_grad()
        self.model(self._images).square().mean().backward()
        self.optimizers.step()

    def save_at_once(self, path: Path) -> None:
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizers.state_dict()}, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="rounds; the median counts")
    parser.add_argument("--directory", type=Path, help="folder for checkpoints (default: the temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        print(*measure(TrainingOutput(Path(folder)), arguments.rounds), sep="\n")


def measure(output: TrainingOutput, rounds: int) -> list[str]:
    config = TrainConfig()
    output.begin("pytorch", config, "")
    training, writer, staging = ResNet50(), CheckpointWriter(output, config), Staging()
    ours, theirs, quiet, disturbed = [], [], [], []

    def save_ours(step: int) -> None:
        details = {"world_size": 1, "metrics": {"accuracy": 0.0}}
        state = state_of(training.model, training.optimizers, None, None)
        save(writer, staging, TrainingProgress(step=step), details, state, training.model.buffers(), None)

    for number in range(rounds + 1):
        quiet.extend(seconds(training.take_step) for _ in range(5))
        theirs.append(seconds(lambda: training.save_at_once(output.path / "state.pt")))
        training.take_step()
        ours.append(seconds(lambda step=number: save_ours(step)))
        while writer.is_writing:
            disturbed.append(seconds(training.take_step))
    writer.wait()
    resumed = seconds(lambda: resume(output, config))
    first, *ours = ours
    return [
        f"state of {size_of(output) / 1e6:.0f} MB, {DEVICE.type}, {torch.get_num_threads()} threads, {rounds} rounds",
        "| | median ms | slowest |",
        "| - | -: | -: |",
        row("**ours**: the steps wait", ours),
        row("the first time, which allocates", [first]),
        row("`torch.save`", theirs[1:]),
        row("a step", quiet[5:]),
        row("a step while ours is written", disturbed),
        row("resume: verify, load, restore", [resumed]),
        f"ours / torch.save: {median(ours) / median(theirs):.2f}",
    ]


def resume(output: TrainingOutput, config: TrainConfig) -> None:
    fresh = ResNet50()
    checkpoint, state = next(intact_checkpoints(output.checkpoints)), (fresh.model, fresh.optimizers, None)
    restore(checkpoint, config, *state, Group(ProcessRole(), DEVICE), keep_hyperparameters=False)


def size_of(output: TrainingOutput) -> int:
    return sum(file["size"] for file in next(intact_checkpoints(output.checkpoints)).manifest["files"])


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def row(what: str, taken: list[float]) -> str:
    return f"| {what} | {1000 * median(taken):,.1f} | {1000 * max(taken):,.1f} |"


if __name__ == "__main__":
    main()
