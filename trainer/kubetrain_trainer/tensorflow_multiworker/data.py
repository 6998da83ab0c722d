"""Samples from an image folder, from tar shards, or synthetic."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kubetrain_trainer import image_folder, tar_shards
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.given_images import GivenImages
from kubetrain_trainer.image_folder import ImageFolder
from kubetrain_trainer.image_input import DEVIATION, MEAN
from kubetrain_trainer.model_names import image_size
from kubetrain_trainer.tar_shards import TarShards

THUMBNAIL_PIXELS = 64
IMAGES_PER_READ = 8
"""Images in shards are read in groups, because calling Python from a graph takes longer than reading one image."""


@dataclass(frozen=True)
class ImageData:
    classes: tuple[str, ...]
    pixels: int
    split: Callable[[str], Any]


def image_data(config: TrainConfig, data_dir: Path) -> ImageData:
    pixels = image_size(config)
    if config.data == "synthetic":
        classes = tuple(f"class-{number}" for number in range(config.synthetic_classes))
        return ImageData(
            classes,
            pixels,
            lambda split: SyntheticImages(split, config.synthetic_samples, config.synthetic_classes, pixels),
        )
    source = tar_shards if config.data == "tar_shards" else image_folder
    return ImageData(
        source.list_classes(data_dir), pixels, lambda split: StoredImages(source.list_images(data_dir, split), pixels)
    )


class StoredImages:
    def __init__(self, images: ImageFolder | TarShards | GivenImages, pixels: int) -> None:
        self._images = images
        self.notes = getattr(images, "notes", ())
        self._paths = tf.constant(images.paths)
        self._labels = tf.constant(np.asarray(images.labels, np.int32))
        self._pixels = pixels

    def __len__(self) -> int:
        return len(self._labels)

    def read(self, indices: tf.data.Dataset) -> tf.data.Dataset:
        """Add the bytes of images in shards to their indices, because several are read faster together."""
        if isinstance(self._images, ImageFolder):
            return indices
        return (
            indices.batch(IMAGES_PER_READ)
            .map(lambda group: (group, self._read_from_shards(group)), tf.data.AUTOTUNE)
            .unbatch()
        )

    def load(self, index: tf.Tensor, content: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Return normalized pixels (height, width, 3) and the label."""
        image = self._decode(index, content)
        return normalize(fit_image(image, self._pixels)), tf.gather(self._labels, index)

    def picture(self, index: int) -> str:
        """Return a thumbnail for the report, as a data URI."""
        image = self._decode(index)
        if max(image.shape[:2]) > THUMBNAIL_PIXELS:
            small = tf.image.resize(image, [THUMBNAIL_PIXELS] * 2, preserve_aspect_ratio=True, antialias=True)
            image = tf.cast(tf.round(small), tf.uint8)
        return "data:image/png;base64," + base64.b64encode(tf.io.encode_png(image).numpy()).decode()

    def _decode(self, index: tf.Tensor, content: tf.Tensor | None = None) -> tf.Tensor:
        content = self._read(index) if content is None else content
        try:
            image = tf.io.decode_image(content, channels=3, expand_animations=False)
        except tf.errors.InvalidArgumentError as error:
            name = self._images.name(int(index))
            raise KubetrainError(f"{name} is not an image that can be read: replace it, or remove it") from error
        image.set_shape([None, None, 3])
        return image

    def _read(self, index: tf.Tensor) -> tf.Tensor:
        if isinstance(self._images, ImageFolder):
            return tf.io.read_file(tf.gather(self._paths, index))
        return self._read_from_shards(tf.reshape(index, [1]))[0]

    def _read_from_shards(self, indices: tf.Tensor) -> tf.Tensor:
        # TensorFlow reads a part of a file only as a dataset of one record, which takes 20 times as long.
        return tf.ensure_shape(tf.numpy_function(self._read_in_python, [indices], tf.string), indices.shape)

    def _read_in_python(self, indices: np.ndarray) -> np.ndarray:
        return np.array([self._images.read(index) for index in indices], object)


class SyntheticImages:
    """Noise around one pattern per class: learnable, without files, and the same in every process."""

    def __init__(self, split: str, samples: int, classes: int, pixels: int) -> None:
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


def fit_image(image: tf.Tensor, pixels: int) -> tf.Tensor:
    """Scale the shorter side to the model's input size and crop the center."""
    height, width = tf.unstack(tf.shape(image)[:2])
    scale = pixels / tf.minimum(height, width)
    size = tf.cast(tf.round(tf.cast([height, width], tf.float64) * scale), tf.int32)
    scaled = tf.image.resize(image, tf.maximum(size, pixels), antialias=True)
    return tf.image.resize_with_crop_or_pad(scaled, pixels, pixels)


def normalize(image: tf.Tensor) -> tf.Tensor:
    return (tf.cast(image, tf.float32) / 255 - tf.constant(MEAN)) / tf.constant(DEVIATION)
