"""Samples from an image folder, from tar shards, or synthetic."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.stored_images import ImageData, read_images, synthetic_images
from kubetrain_trainer.tensorflow_multiworker.augmented_images import AugmentedImages
from kubetrain_trainer.tensorflow_multiworker.images import StoredImages


def image_data(config: TrainConfig, data_dir: Path) -> ImageData:
    if config.data == "synthetic":
        return synthetic_images(config, SyntheticImages)
    return read_images(config, data_dir, StoredImages, AugmentedImages)


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
