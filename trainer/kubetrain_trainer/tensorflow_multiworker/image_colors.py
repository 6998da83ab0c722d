"""Changes of an image's colors, as Pillow makes them: floats from 0 to 255 of shape (height, width, 3)."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from kubetrain_trainer.augmentation import Color

LUMA = np.repeat([[0.299], [0.587], [0.114]], 3, axis=1).astype(np.float32)
"""Multiplied by it, a pixel's color becomes its gray, three times, because what follows takes longer with one gray."""
SMOOTH = (1, 1, 1, 1, 5, 1, 1, 1, 1)


def recolor(image: tf.Tensor, kind: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
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
    return tf.switch_case(tf.cast(kind, tf.int32), [changes[each] for each in Color])


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
    low, high = (of_channels(reduce, rows) for reduce in (tf.reduce_min, tf.reduce_max))
    factor = tf.where(high > low, 255 / tf.maximum(high - low, 1), 1)
    low = tf.where(high > low, low, 0)
    return tf.reshape((rows - tf.tile(low, [width])) * tf.tile(factor, [width]), image.shape)


def of_channels(reduce: Callable[..., tf.Tensor], rows: tf.Tensor) -> tf.Tensor:
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
