"""Images from files, as the built-in models take them."""

import base64
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from kubetrain_trainer.data.given_images import GivenImages
from kubetrain_trainer.data.image_folder import ImageFolder
from kubetrain_trainer.data.left_out import damaged_image
from kubetrain_trainer.data.tar_shards import TarShards, groups_of
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.image_input import DEVIATION, FAITHFUL, MEAN, THUMBNAIL_PIXELS, shorter_side
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.model_names import image_size

JPEG, END, SCALES = b"\xff\xd8\xff", b"\xff\xd9", (1, 2, 4, 8)
"""The first and last bytes of a JPEG, and the fractions of its size as which it can be decoded."""
Surplus = Callable[[tf.Tensor], tf.Tensor]
"""Returns by the height and width of an image how many times as many pixels in a row it has as needed."""
Part = Callable[[tf.Tensor], tf.Tensor]
"""Returns by the height and width of an image the part that is needed: top, left, height and width."""
IMAGES_PER_READ = 8
"""Images in shards are read in groups, because calling Python from a graph takes longer than reading one image."""


class StoredImages:
    def __init__(self, images: ImageFolder | TarShards | GivenImages, config: TrainConfig) -> None:
        self._images = images
        self.notes = getattr(images, "notes", ())
        self.groups = groups_of(images, config)
        self.failure: KubetrainError | None = None
        """The reason why a shard could not be read, which a graph does not report."""
        self._paths = tf.constant([os.fsencode(path) for path in images.paths])
        self._labels = tf.constant(np.asarray(images.labels, np.int32))
        self._pixels, self._shorter_side = image_size(config), shorter_side(config)

    def __len__(self) -> int:
        return len(self._labels)

    def read(self, indices: tf.data.Dataset, epoch: int) -> tf.data.Dataset:
        """Add the bytes of images in shards to their indices, because several are read faster together."""
        if isinstance(self._images, ImageFolder):
            return indices
        return (
            indices.batch(IMAGES_PER_READ)
            .map(lambda group: (group, self._read_from_shards(group)), tf.data.AUTOTUNE)
            .unbatch()
        )

    def load(self, index: Any, content: Any = None, /) -> Any:
        """Return uint8 pixels (height, width, 3) and the label; `prepare` normalizes whole batches on the device."""
        return as_bytes(self._fitted(index, content)), tf.gather(self._labels, index)

    def files_checksum(self) -> int:
        return self._images.files_checksum()  # type: ignore[union-attr]

    def prepare(self, images: tf.Tensor) -> tf.Tensor:
        return normalize(images)

    def picture(self, index: int) -> str:
        """Return a thumbnail for the report, as a data URI."""
        image = self._decode(index, surplus=shorter_side_surplus(THUMBNAIL_PIXELS))
        if max(image.shape[:2]) > THUMBNAIL_PIXELS:
            small = tf.image.resize(image, [THUMBNAIL_PIXELS] * 2, preserve_aspect_ratio=True, antialias=True)
            image = as_bytes(small)
        return "data:image/png;base64," + base64.b64encode(tf.io.encode_png(image).numpy()).decode()

    def _fitted(self, index: tf.Tensor, content: tf.Tensor | None) -> tf.Tensor:
        image = self._decode(index, content, surplus=shorter_side_surplus(self._shorter_side))
        return fit_image(image, self._pixels, self._shorter_side)

    def _decode(
        self, index: tf.Tensor, content: tf.Tensor | None = None, *, surplus: Surplus, part: Part | None = None
    ) -> tf.Tensor:
        """Return the image or the part, which a JPEG gives at a smaller scale if it still has enough pixels then."""
        content = self._read(index) if content is None else content
        try:
            image = decode(content, surplus, part)
        except tf.errors.InvalidArgumentError as error:
            raise damaged_image(self._images, int(index)) from error
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
        try:
            return np.array([self._images.read(index) for index in indices], object)
        except KubetrainError as error:
            self.failure = error
            raise


def shorter_side_surplus(pixels: int) -> Surplus:
    return lambda size: tf.reduce_min(size) / (FAITHFUL * pixels)


def decode(content: tf.Tensor, surplus: Surplus, part: Part | None) -> tf.Tensor:
    is_jpeg = tf.strings.substr(content, 0, len(JPEG)) == JPEG
    return tf.cond(is_jpeg, lambda: decode_jpeg(content, surplus, part), lambda: decode_other(content, part))


def decode_other(content: tf.Tensor, part: Part | None) -> tf.Tensor:
    image = tf.io.decode_image(content, channels=3, expand_animations=False)
    return cut(lambda: image, part(tf.shape(image)[:2])) if part else image


def decode_jpeg(content: tf.Tensor, surplus: Surplus, part: Part | None) -> tf.Tensor:
    """Decode only the part, unless the end of the file is missing: what is lost might be outside."""
    size = tf.io.extract_jpeg_shape(content)[:2]
    level = tf.reduce_sum(tf.cast(surplus(tf.cast(size, tf.float32)) >= SCALES[1:], tf.int32))
    whole = [partial(tf.io.decode_jpeg, content, channels=3, ratio=scale) for scale in SCALES]
    if not part:
        return tf.switch_case(level, whole)
    window = part(-(-size // tf.gather(SCALES, level)))
    parts = [partial(tf.io.decode_and_crop_jpeg, content, window, channels=3, ratio=scale) for scale in SCALES]
    cuts = [partial(cut, decoded, window) for decoded in whole]
    is_cut_off = tf.strings.substr(content, -len(END), len(END)) != END
    return tf.switch_case(level + len(SCALES) * tf.cast(is_cut_off, tf.int32), [*parts, *cuts])


def cut(decoded: Callable[[], tf.Tensor], window: tf.Tensor) -> tf.Tensor:
    top, left, height, width = tf.unstack(window)
    return decoded()[top : top + height, left : left + width]


def fit_image(image: tf.Tensor, pixels: int, shorter_side: int) -> tf.Tensor:
    """Scale the shorter side, and crop the center in the model's input size."""
    height, width = tf.unstack(tf.shape(image)[:2])
    scale = shorter_side / tf.minimum(height, width)
    size = tf.cast(tf.round(tf.cast([height, width], tf.float64) * scale), tf.int32)
    return tf.image.resize_with_crop_or_pad(resize(image, *tf.unstack(tf.maximum(size, pixels))), pixels, pixels)


def resize(image: tf.Tensor, height: Any, width: Any) -> tf.Tensor:
    """Do what tf.image.resize() with antialiasing does in less than half of the time.

    TensorFlow adds up rows by vectors, but columns pixel by pixel: here the columns are the rows of a second pass.
    """
    for length in (height, width):
        rows, columns, _ = tf.unstack(tf.shape(image))
        resized = tf.raw_ops.ScaleAndTranslate(
            images=tf.reshape(image, [1, rows, 1, columns * 3]),
            size=[length, 1],
            scale=[tf.cast(length, tf.float32) / tf.cast(rows, tf.float32), 1.0],
            translation=[0.0, 0.0],
            kernel_type="triangle",
        )
        image = tf.transpose(tf.reshape(resized, [length, columns, 3]), [1, 0, 2])
    return image


def as_bytes(image: tf.Tensor) -> tf.Tensor:
    """Round levels, which resizing, blending and changes of colors keep between 0 and 255."""
    return tf.cast(image + 0.5, tf.uint8)


def normalize(images: tf.Tensor) -> tf.Tensor:
    """Normalize a uint8 batch on the device, because copying it there as floats would move four times as much."""
    return (tf.cast(images, tf.float32) - 255 * tf.constant(MEAN)) / (255 * tf.constant(DEVIATION))
