"""Samples from an image folder, from tar shards, or synthetic."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.model_names import image_size
from kubetrain_trainer.stored_images import source_of
from kubetrain_trainer.tensorflow_multiworker.augmented_images import AugmentedImages
from kubetrain_trainer.tensorflow_multiworker.images import StoredImages


@dataclass(frozen=True)
class ImageData:
    classes: tuple[str, ...]
    split: Callable[[str], Any]
    training: Callable[[], Any]
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


class SyntheticImages:
    """Noise around one pattern per class: learnable, without files, and the same in every process."""

    def __init__(self, samples: int, classes: int, pixels: int, split: str) -> None:
        self._samples = samples
        shape = (classes, pixels, pixels, 3)
        self._patterns = tf.constant(np.random.default_rng(0).normal(size=shape), tf.float32)
        noise = np.random.default_rng(sum(split.encode())).normal(size=2 * pixels * pixels * 3)
        self._noise = tf.constant(noise, tf.float32)

    def __len__(self) -> int:
        return self._samples

    def load(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        label = tf.cast(index, tf.int32) % self._patterns.shape[0]
        pattern = tf.gather(self._patterns, label)
        # Drawing new noise for each sample would take longer than a step of a small model.
        start = tf.random.stateless_uniform([], [0, tf.cast(index, tf.int32)], 0, tf.size(pattern), tf.int32)
        noise = tf.slice(self._noise, [start], [tf.size(pattern)])
        return pattern + tf.reshape(noise, tf.shape(pattern)), label
