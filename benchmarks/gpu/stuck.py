"""A task of your own that hangs at its third step."""

import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from kubetrain_trainer.pytorch_ddp.task import SyntheticImages, Task, accuracy, cross_entropy
from kubetrain_trainer.settings.config import TrainConfig

HANGS_AT = 3
CYCLES = 2 * 10**11
"""About two minutes, so that the kernel ends by itself if nothing ends it."""


def build(config: TrainConfig, data_dir: Path) -> Task:
    hang = {"in Python": wait_for_nothing, "in a kernel": wait_on_the_gpu}[config.model_args["kind"]]
    calls = iter(range(1, 10**6))

    def training_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if next(calls) == HANGS_AT:
            hang()
        return cross_entropy(outputs, targets)

    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))
    return Task(
        model=model,
        data=partial(SyntheticImages, 4096, 10, 8),
        loss=cross_entropy,
        training_loss=training_loss,
        metrics={"accuracy": accuracy},
    )


def wait_for_nothing() -> None:
    while True:
        time.sleep(1)


def wait_on_the_gpu() -> None:
    torch.cuda._sleep(CYCLES)
