"""Samples from an image folder, from tar shards, or synthetic."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from kubetrain_trainer import image_folder, tar_shards
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.derived_seed import derived_seed
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.given_images import GivenImages
from kubetrain_trainer.image_folder import ImageFolder
from kubetrain_trainer.image_input import DEVIATION, MEAN
from kubetrain_trainer.model_names import image_size
from kubetrain_trainer.tar_shards import TarShards

THUMBNAIL_PIXELS = 64


@dataclass(frozen=True)
class ImageData:
    classes: tuple[str, ...]
    split: Callable[[str], "Dataset[tuple[Tensor, int]]"]


def image_data(config: TrainConfig, data_dir: Path) -> ImageData:
    pixels = image_size(config)
    if config.data == "synthetic":
        classes = tuple(f"class-{number}" for number in range(config.synthetic_classes))
        return ImageData(
            classes, lambda split: SyntheticImages(split, config.synthetic_samples, config.synthetic_classes, pixels)
        )
    source = tar_shards if config.data == "tar_shards" else image_folder
    return ImageData(
        source.list_classes(data_dir), lambda split: StoredImages(source.list_images(data_dir, split), pixels)
    )


class StoredImages(Dataset[tuple[Tensor, int]]):
    def __init__(self, images: ImageFolder | TarShards | GivenImages, pixels: int) -> None:
        self._images = images
        self.notes = getattr(images, "notes", ())
        self._pixels = pixels

    def __len__(self) -> int:
        return len(self._images.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return uint8 pixels (3, height, width) and the label; `prepare` normalizes whole batches on the device."""
        return channels_first(fit_image(self._decode(index), self._pixels)), self._images.labels[index]

    def prepare(self, images: Tensor) -> Tensor:
        return normalize(images)

    def picture(self, index: int) -> str:
        """Return a thumbnail for the report, as a data URI."""
        thumbnail = self._decode(index)
        thumbnail.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
        buffer = io.BytesIO()
        thumbnail.save(buffer, "PNG")
        return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()

    def _decode(self, index: int) -> Image.Image:
        content = self._images.read(index)
        try:
            return eight_bits(Image.open(io.BytesIO(content))).convert("RGB")
        except Exception as error:  # Pillow raises exceptions of many classes
            name = self._images.name(index)
            raise KubetrainError(f"{name} is not an image that can be read: replace it, or remove it") from error


class SyntheticImages(Dataset[tuple[Tensor, int]]):
    """Noise around one pattern per class: learnable, without files, and the same in every process."""

    def __init__(self, split: str, samples: int, classes: int, pixels: int) -> None:
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


def eight_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit gray levels as TensorFlow does. Pillow's convert() makes all but the darkest white."""
    if not image.mode.startswith("I;16"):
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def fit_image(image: Image.Image, pixels: int) -> Image.Image:
    """Scale the shorter side to the model's input size and crop the center."""
    if image.size == (pixels, pixels):
        return image
    scale = pixels / min(image.size)
    scaled = image.resize(
        (max(pixels, round(image.width * scale)), max(pixels, round(image.height * scale))), Image.Resampling.BILINEAR
    )
    left, top = (scaled.width - pixels) // 2, (scaled.height - pixels) // 2
    return scaled.crop((left, top, left + pixels, top + pixels))


def channels_first(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def normalize(images: Tensor) -> Tensor:
    """Normalize a uint8 batch on the device, because copying it there as floats would move four times as much."""
    return (images - _per_channel(MEAN, images.device)) / _per_channel(DEVIATION, images.device)


@cache
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Copy the values to the device once, because a copy for each batch would make the host wait for the GPU."""
    return torch.tensor(values, device=device).view(3, 1, 1) * 255
