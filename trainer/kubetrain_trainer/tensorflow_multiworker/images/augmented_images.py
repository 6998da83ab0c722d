"""Training images, changed at random by the recipe."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from random import Random
from typing import Any

import numpy as np
import tensorflow as tf

from kubetrain_trainer.data.image_folder import ImageFolder
from kubetrain_trainer.data.left_out import LeftOut
from kubetrain_trainer.data.sample_order import derived_seed
from kubetrain_trainer.data.tar_shards import TarShards
from kubetrain_trainer.output.image_input import MEAN
from kubetrain_trainer.settings.augmentation import NOTHING, UNCHANGED, Color, Drawn, draw
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.tensorflow_multiworker.images.decoded_images import (
    IMAGES_PER_READ,
    StoredImages,
    as_bytes,
    resize,
)

GRAY = np.round(255 * np.array(MEAN, np.float32))
"""The color of pixels that no image gives, which is about zero for the model."""
SIZES = {"crop": 4, "is_flipped": 1, "affine": 6, "erased": 4, "weight": 1, "part": 4}
"""The parts of what is drawn, as numbers in a row. The changes of colors follow."""
LUMA = np.repeat([[0.299], [0.587], [0.114]], 3, axis=1).astype(np.float32)
"""Multiplied by it, a pixel's color becomes its gray, three times, because what follows takes longer with one gray."""
SMOOTH = (1, 1, 1, 1, 5, 1, 1, 1, 1)


class AugmentedImages(StoredImages):
    def __init__(self, images: ImageFolder | TarShards, config: TrainConfig) -> None:
        super().__init__(images, config)
        self._recipe, self._seed = config.augmentation, config.seed
        self.left_out = LeftOut(config.skip_damaged)

    def read(self, indices: tf.data.Dataset, epoch: int) -> tf.data.Dataset:
        """Add what is drawn for the images to their indices, and their bytes if they are in shards."""
        if not self._recipe.is_used:
            return super().read(indices, epoch)
        groups = indices.batch(IMAGES_PER_READ)
        return groups.map(lambda group: self._read_group(group, epoch), tf.data.AUTOTUNE).unbatch()

    def load(self, index: Any, drawn: Any = None, content: Any = None, /) -> Any:
        """Return uint8 pixels and the label, and how to mix them with the next sample's if the recipe mixes."""
        if drawn is None or not self._recipe.is_used:
            return super().load(index, drawn)
        first, colors = tf.split(drawn, [sum(SIZES.values()), 2 * self._recipe.colors])
        parts = dict(zip(SIZES, tf.split(first, [*SIZES.values()]), strict=True))
        is_cropped = self._recipe.crop_area < 1
        image = self._cropped(index, content, parts["crop"]) if is_cropped else self._fitted(index, content)
        image = self._changed(image, parts, tf.reshape(colors, [-1, 2]))
        sample = as_bytes(image), tf.gather(self._labels, index)
        return (*sample, (parts["weight"], parts["part"])) if self._recipe.mixes else sample

    def _cropped(self, index: Any, content: Any, drawn: tf.Tensor) -> tf.Tensor:
        def surplus(size: tf.Tensor) -> tf.Tensor:
            least = tf.math.ceil(self._pixels * size / crop_size(size, drawn))
            return tf.reduce_min(size / least)

        image = self._decode(index, content, surplus=surplus, part=partial(cropped_part, drawn=drawn))
        return resize(image, self._pixels, self._pixels)

    def _changed(self, image: tf.Tensor, parts: Mapping[str, tf.Tensor], colors: tf.Tensor) -> tf.Tensor:
        image = changed_if(parts["is_flipped"] > 0, partial(tf.reverse, axis=[1]), image)
        if self._recipe.rand_augment:
            is_moved = tf.reduce_any(parts["affine"] != UNCHANGED)
            image = changed_if(is_moved, partial(move, affine=parts["affine"]), image)
        for number in range(self._recipe.colors):
            image = recolor(image, *tf.unstack(colors[number]))
        if self._recipe.erase:
            is_erased = tf.reduce_any(parts["erased"] != NOTHING)
            image = changed_if(is_erased, partial(erase, part=parts["erased"]), image)
        return image

    def _read_group(self, group: tf.Tensor, epoch: int) -> tuple[tf.Tensor, ...]:
        drawn = tf.numpy_function(lambda indices: self._draw(indices, epoch), [group], tf.float32)
        drawn = tf.ensure_shape(drawn, [None, sum(SIZES.values()) + 2 * self._recipe.colors])
        return (
            (group, drawn) if isinstance(self._images, ImageFolder) else (group, drawn, self._read_from_shards(group))
        )

    def _draw(self, indices: Sequence[int], epoch: int) -> np.ndarray:
        """Draw from the numbers that PyTorch's loader, too, seeds for each sample."""
        randoms = [Random(derived_seed(self._seed, epoch, int(index))) for index in indices]
        return np.array([numbers(draw(self._recipe, random), self._recipe.colors) for random in randoms], np.float32)


def numbers(drawn: Drawn, most_colors: int) -> list[float]:
    weight, part = drawn.mixed
    colors = [*drawn.colors, *[(Color.NONE, 0.0)] * (most_colors - len(drawn.colors))]
    return [*drawn.crop, drawn.is_flipped, *drawn.affine, *drawn.erased, weight, *part, *chain.from_iterable(colors)]


def cropped_part(whole: tf.Tensor, drawn: tf.Tensor) -> tf.Tensor:
    """Return top, left, height and width of at least one pixel, in an image of this height and width."""
    size = crop_size(tf.cast(whole, tf.float32), drawn)
    corner = drawn[:1:-1] * (tf.cast(whole, tf.float32) - size)
    first, last = (tf.cast(tf.round(point), tf.int32) for point in (corner, corner + size))
    first = tf.minimum(first, whole - 1)
    return tf.concat([first, tf.maximum(last - first, 1)], 0)


def crop_size(whole: tf.Tensor, drawn: tf.Tensor) -> tf.Tensor:
    """Return height and width of what is drawn: area, width to height, and the corner's place."""
    area, ratio = drawn[0], drawn[1]
    return tf.minimum(whole, tf.sqrt(area * tf.reduce_prod(whole) * tf.stack([1 / ratio, ratio])))


def move(image: tf.Tensor, affine: tf.Tensor) -> tf.Tensor:
    a, b, c, d, e, f = tf.unstack(affine)
    size = tf.cast(tf.shape(image)[0], tf.float32)
    center = (size - 1) / 2  # of the first pixel's place, zero, and the last one's
    from_corner = [a, b, size * c + center * (1 - a - b), d, e, size * f + center * (1 - d - e), 0, 0]
    gray = gray_image(image)
    return (
        gray
        + tf.raw_ops.ImageProjectiveTransformV3(
            images=(image - gray)[None],
            transforms=[from_corner],
            output_shape=tf.shape(image)[:2],
            fill_value=0.0,
            interpolation="BILINEAR",
        )[0]
    )


def changed_if(condition: tf.Tensor, change: Callable[[tf.Tensor], tf.Tensor], image: tf.Tensor) -> tf.Tensor:
    """Branch, because to choose between two images takes half as long as decoding one."""
    return tf.cond(condition, lambda: change(image), lambda: image)


def erase(image: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
    return image + tf.cast(inside(part, image.shape[0]), tf.float32) * (gray_image(image) - image)


def gray_image(image: tf.Tensor) -> tf.Tensor:
    """Return an image of this shape, all gray: to compute with one color for all pixels takes longer.

    It is made of one row, because a constant of all pixels would make each start of a dataset slower.
    """
    height, width, _ = image.shape
    return tf.reshape(tf.tile(tf.constant(np.tile(GRAY, width)[None]), [height, 1]), image.shape)


def inside(part: tf.Tensor, pixels: int) -> tf.Tensor:
    """Return a mask (height, width, 1) of the pixels inside."""
    left, top, right, bottom = tf.unstack(tf.round(part * pixels))
    places = tf.range(float(pixels))
    columns, rows = (places >= left) & (places < right), (places >= top) & (places < bottom)
    return (rows[:, None] & columns)[..., None]


def batch_and_mix(samples: tf.data.Dataset, size: int, classes: int) -> tf.data.Dataset:
    """Make batches, mixing the samples two by two if they say how. Their labels become shares of classes."""
    batches = samples.batch(size)
    return batches.map(partial(mix, classes=classes), tf.data.AUTOTUNE) if len(samples.element_spec) == 3 else batches


def mix(images: tf.Tensor, labels: tf.Tensor, mixed: tuple[tf.Tensor, tf.Tensor], classes: int) -> tuple[Any, ...]:
    count, places = tf.shape(images)[0], tf.range(tf.shape(images)[0])
    weights, parts = (tf.gather(drawn, places - places % 2) for drawn in mixed)  # the first of two says how
    others = tf.minimum(tf.bitwise.bitwise_xor(places, 1), count - 1)
    masks = tf.map_fn(partial(inside, pixels=images.shape[1]), parts, fn_output_signature=tf.bool)
    pixels = weights[..., None, None] * tf.cast(masks, tf.float32)
    shares, targets = tf.reduce_mean(pixels, [1, 2]), tf.one_hot(labels, classes)
    return as_bytes(blended(tf.cast(images, tf.float32), others, pixels)), blended(targets, others, shares)


def blended(values: tf.Tensor, others: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return values + weights * (tf.gather(values, others) - values)


def recolor(image: tf.Tensor, kind: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    """Change the colors of an image as Pillow does: floats from 0 to 255 of shape (height, width, 3)."""
    changes = {
        Color.NONE: lambda: image,
        Color.BRIGHTNESS: lambda: blend(tf.zeros_like(image), image, amount),
        Color.CONTRAST: lambda: blend(tf.round(tf.reduce_mean(gray(image))), image, amount),
        Color.SATURATION: lambda: blend(gray(image), image, amount),
        Color.SHARPNESS: lambda: blend(smooth(image), image, amount),
        Color.POSTERIZE: lambda: posterize(image, amount),
        Color.SOLARIZE: lambda: tf.abs(image - 255 * tf.cast(image >= amount, tf.float32)),
        Color.AUTOCONTRAST: lambda: stretch(image),
        Color.EQUALIZE: lambda: equalize(image),
    }
    return tf.switch_case(tf.cast(kind, tf.int32), [changes[color] for color in Color])


def blend(other: tf.Tensor, image: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value(other + amount * (image - other), 0, 255)


def gray(image: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.matmul(tf.reshape(image, [-1, 3]), LUMA), tf.shape(image))


def smooth(image: tf.Tensor) -> tf.Tensor:
    kernel = tf.constant(SMOOTH, tf.float32, [3, 3, 1, 1]) / sum(SMOOTH)
    padded = tf.pad(image, [[1, 1], [1, 1], [0, 0]], "SYMMETRIC")[None]
    return tf.nn.depthwise_conv2d(padded, tf.tile(kernel, [1, 1, 3, 1]), [1] * 4, "VALID")[0]


def posterize(image: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    step = 2 ** (8 - bits)
    return tf.floor(tf.round(image) / step) * step


def stretch(image: tf.Tensor) -> tf.Tensor:
    """Stretch each channel over all values."""
    height, width, _ = image.shape
    rows = tf.reshape(image, [height, -1])  # several times as fast as with an innermost dimension of three
    low, high = (reduce_channels(reduce, rows) for reduce in (tf.reduce_min, tf.reduce_max))
    factor = tf.where(high > low, 255 / tf.maximum(high - low, 1), 1)
    low = tf.where(high > low, low, 0)
    return tf.reshape((rows - tf.tile(low, [width])) * tf.tile(factor, [width]), image.shape)


def reduce_channels(reduce: Callable[..., tf.Tensor], rows: tf.Tensor) -> tf.Tensor:
    return reduce(tf.reshape(reduce(rows, 0), [-1, 3]), 0)


def equalize(image: tf.Tensor) -> tf.Tensor:
    """Make all values of each channel about equally frequent."""
    levels = tf.cast(tf.round(image), tf.int32) + tf.range(3) * 256  # other numbers for each channel
    counts = tf.reshape(tf.math.bincount(tf.reshape(levels, [-1]), minlength=768, maxlength=768), [3, 256])
    highest = tf.reduce_max(tf.where(counts > 0, tf.range(256), 0), axis=1, keepdims=True)
    step = (tf.size(levels) // 3 - tf.gather(counts, highest, batch_dims=1)) // 255
    table = (tf.cumsum(counts, axis=1, exclusive=True) + step // 2) // tf.maximum(step, 1)
    table = tf.where(step > 0, tf.minimum(table, 255), tf.range(256))
    return tf.cast(tf.gather(tf.reshape(table, [-1]), levels), tf.float32)
