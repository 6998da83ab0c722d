"""ResNet-50 on images that are on the device already, so that a training measures nothing but its steps."""

from functools import cache, partial
from pathlib import Path

import torch
import torchvision
from torch import Tensor
from torch.utils.data import Dataset

from kubetrain_trainer.pytorch_ddp.images.decoded_images import normalize
from kubetrain_trainer.pytorch_ddp.task import Task, accuracy, cross_entropy
from kubetrain_trainer.settings.config import TrainConfig

CLASSES, IMAGES = 1000, 512
VALIDATED = 256


def build(config: TrainConfig, data_dir: Path) -> Task:
    return Task(
        model=torchvision.models.get_model(config.model_args["name"], num_classes=CLASSES),
        data=partial(ResidentImages, config.synthetic_data.samples, config.image_size),
        loss=cross_entropy,
        metrics={"accuracy": accuracy},
    )


class ResidentImages(Dataset[tuple[int, int]]):
    """Only numbers of images pass through the loading processes."""

    def __init__(self, samples: int, pixels: int, split: str) -> None:
        self._samples = samples if split == "train" else VALIDATED
        self._pixels = pixels

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index % IMAGES, index % CLASSES

    def prepare(self, numbers: Tensor) -> Tensor:
        return normalize(stored(self._pixels, numbers.device)[numbers])


@cache
def stored(pixels: int, device: torch.device) -> Tensor:
    return torch.randint(0, 256, (IMAGES, 3, pixels, pixels), dtype=torch.uint8, device=device)
