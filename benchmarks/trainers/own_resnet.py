"""A torchvision model as a task of your own, as simple as such tasks are."""

from functools import partial
from pathlib import Path

import torchvision
from torch import Tensor
from torch.nn import functional

from kubetrain_trainer.pytorch_ddp.task import SyntheticImages, Task
from kubetrain_trainer.settings.config import TrainConfig


def build(config: TrainConfig, data_dir: Path) -> Task:
    size = config.synthetic_data
    return Task(
        model=torchvision.models.get_model(config.model_args["name"], num_classes=size.classes),
        data=partial(SyntheticImages, size.samples, size.classes, config.image_size),
        loss=loss,
        metrics={"accuracy": accuracy},
    )


def loss(scores: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(scores, labels, reduction="none")


def accuracy(scores: Tensor, labels: Tensor) -> Tensor:
    return (scores.argmax(dim=1) == labels).float()
