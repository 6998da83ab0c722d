"""Samples from an image folder, from tar shards, or synthetic."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.model_names import image_size
from kubetrain_trainer.pytorch_ddp.augmented_images import AugmentedImages
from kubetrain_trainer.pytorch_ddp.images import StoredImages
from kubetrain_trainer.sample_order import derived_seed
from kubetrain_trainer.stored_images import source_of


@dataclass(frozen=True)
class ImageData:
    classes: tuple[str, ...]
    split: Callable[[str], "Dataset[Any]"]
    training: Callable[[], "Dataset[Any]"]
    """Returns the samples to train on, which the recipe changes."""


def image_data(config: TrainConfig, data_dir: Path) -> ImageData:
    if config.data == "synthetic":
        return synthetic_data(config)
    source = source_of(config, data_dir)
    stored = partial(source.list_images, data_dir)
    return ImageData(
        source.list_classes(data_dir),
        split=lambda split: StoredImages(stored(split), config),
        training=lambda: AugmentedImages(stored("train"), config),
    )


def synthetic_data(config: TrainConfig) -> ImageData:
    classes = tuple(f"class-{number}" for number in range(config.synthetic_classes))
    split = partial(SyntheticImages, config.synthetic_samples, len(classes), image_size(config))
    return ImageData(classes, split=split, training=partial(split, "train"))


class SyntheticImages(Dataset[tuple[Tensor, int]]):
    """Noise around one pattern per class: learnable, without files, and the same in every process."""

    def __init__(self, samples: int, classes: int, pixels: int, split: str) -> None:
        self._samples = samples
        self._patterns = torch.randn(classes, 3, pixels, pixels, generator=torch.Generator().manual_seed(0))
        seed = torch.Generator().manual_seed(sum(split.encode()))
        self._noise = torch.randn(2 * self._patterns[0].numel(), generator=seed)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        label = index % len(self._patterns)
        pattern = self._patterns[label]
        start = derived_seed(index) % pattern.numel()
        # Drawing new noise for each sample would take longer than a step of a small model.
        return pattern + self._noise[start : start + pattern.numel()].view(pattern.shape), label
