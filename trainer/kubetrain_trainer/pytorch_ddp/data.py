"""Samples from an image folder, from tar shards, or synthetic."""

from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.pytorch_ddp.augmented_images import AugmentedImages
from kubetrain_trainer.pytorch_ddp.images import StoredImages
from kubetrain_trainer.sample_order import derived_seed
from kubetrain_trainer.stored_images import ImageData, read_images, synthetic_images


def image_data(config: TrainConfig, data_dir: Path) -> ImageData:
    if config.data == "synthetic":
        return synthetic_images(config, SyntheticImages)
    return read_images(config, data_dir, StoredImages, AugmentedImages)


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
