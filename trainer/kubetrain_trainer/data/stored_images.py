"""The images of a dataset: in folders, in tar shards, or synthetic."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from kubetrain_trainer.data import image_folder, tar_shards
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.model_names import image_size


@dataclass(frozen=True)
class ImageData:
    classes: tuple[str, ...]
    split: Callable[[str], Any]
    training: Callable[[], Any]
    """Returns the samples to train on, which the recipe changes."""


def read_images(
    config: TrainConfig, data_dir: Path, stored: Callable[..., Any], augmented: Callable[..., Any]
) -> ImageData:
    """
    Args:
        stored, augmented: The framework's classes of samples.
    """
    source = source_of(config, data_dir)
    listed = partial(source.list_images, data_dir)
    return ImageData(
        source.list_classes(data_dir),
        split=lambda split: stored(listed(split), config),
        training=lambda: augmented(listed(image_folder.TRAINING_SPLIT), config),
    )


def synthetic_images(config: TrainConfig, synthetic: Callable[..., Any]) -> ImageData:
    size = config.synthetic_data
    classes = tuple(f"class-{number}" for number in range(size.classes))
    split = partial(synthetic, size.samples, size.classes, image_size(config))
    return ImageData(classes, split=split, training=partial(split, "train"))


def source_of(config: TrainConfig, data_dir: Path) -> ModuleType:
    """Return the module that lists the images.

    Raises:
        KubetrainError: if the test images have classes of their own, which an evaluation would find out too late.
    """
    if config.data == "tar_shards":
        return tar_shards
    if (data_dir / config.test_split).is_dir():
        image_folder.check_classes(data_dir, config.test_split)
    return image_folder
