"""Samples (from an image folder, from tar shards or synthetic), and the loader that batches them on the device."""

import base64
import io
import multiprocessing
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from kubetrain_trainer import image_folder, tar_shards
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.cpus import cpus_each
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.given_images import GivenImages
from kubetrain_trainer.image_folder import ImageFolder
from kubetrain_trainer.image_input import DEVIATION, MEAN
from kubetrain_trainer.model_names import image_size
from kubetrain_trainer.process_role import ProcessRole
from kubetrain_trainer.sampling import derived_seed
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


class Loader:
    """A loader that copies batches of samples to the device. Its worker processes live as long as it does."""

    def __init__(self, samples: Any, config: TrainConfig, role: ProcessRole, device: torch.device) -> None:
        self._device = device
        self._prepare = getattr(samples, "prepare", lambda inputs: inputs)
        self._keys: list[list[tuple[int, int]]] = []
        self.size = len(samples)
        workers = loader_workers(config, role, device)
        multiprocessing.set_forkserver_preload([f"{__package__}.loading_processes", __name__])
        self._loader = DataLoader(
            SeededSamples(samples, config.seed),
            batch_sampler=self._keys,
            num_workers=workers,
            persistent_workers=workers > 0,
            # A process forked from one with threads, such as gloo's, may deadlock.
            multiprocessing_context="forkserver" if workers else None,
            worker_init_fn=exit_with_parent if workers else None,
            pin_memory=device.type == "cuda",
        )

    def load(self, batches: Sequence[Sequence[int]], epoch: int = 0) -> Iterator[tuple[Any, Any]]:
        """Yield the batches of samples with these indices, in this order."""
        self._keys[:] = [[(epoch, index) for index in batch] for batch in batches]
        try:
            for inputs, targets in self._loader:
                yield self._prepare(to_device(inputs, self._device)), to_device(targets, self._device)
        except KubetrainError as error:
            # The message is the worker's whole traceback, which ends with the original message.
            raise KubetrainError(str(error).rpartition(f"{type(error).__name__}: ")[2].strip()) from None


def exit_with_parent(_: int) -> None:
    """Exit when the training does. Workers are children of the fork server and would outlive a killed training."""
    threading.Thread(target=_exit_after, args=(multiprocessing.parent_process(),), daemon=True).start()


def _exit_after(process: Any) -> None:
    process.join()
    os._exit(0)


class SeededSamples(Dataset[Any]):
    """Samples whose random augmentation is the same in every process and after every resume."""

    def __init__(self, samples: Any, seed: int) -> None:
        self._samples = samples
        self._seed = seed

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, index = key
        seed_generators(derived_seed(self._seed, epoch, index))
        return self._samples[index]


def seed_generators(seed: int, device: torch.device | None = None) -> None:
    """Seed every generator that a model or an augmentation may use.

    torch.manual_seed takes a hundred times as long, which is too long for each sample and step.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if device is not None and device.type == "cuda":
        torch.cuda.manual_seed(seed)


def loader_workers(config: TrainConfig, role: ProcessRole, device: torch.device) -> int:
    """Return the setting, or by default up to eight: one for each CPU of this process except the one it runs on.

    Without a GPU the default is none, because the training uses every CPU and loading is little of its work.
    """
    if config.loader_workers >= 0:
        return config.loader_workers
    if device.type == "cpu":
        return 0
    return min(8, cpus_each(role.local_world_size) - 1)


def split(batch: Any, parts: int) -> list[Any]:
    """Split a batch of any structure into about equal parts, in order."""
    if parts == 1:
        return [batch]
    if isinstance(batch, dict):
        return [dict(zip(batch, part, strict=True)) for part in split(list(batch.values()), parts)]
    if isinstance(batch, list | tuple) and not isinstance(batch[0], str | bytes):
        return [list(part) for part in zip(*(split(inner, parts) for inner in batch), strict=True)]
    return [batch[len(batch) * part // parts : len(batch) * (part + 1) // parts] for part in range(parts)]


def to_device(value: Any, device: torch.device) -> Any:
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), value)


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return a value of any structure with `change` applied to each tensor in it."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: map_tensors(change, inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [map_tensors(change, inner) for inner in value]
    return value
