"""Changes of an image's colors, as Pillow makes them: floats from 0 to 255 of shape (height, width, 3)."""

import tensorflow as tf

from kubetrain_trainer.augmentation import Color

LUMA = (0.299, 0.587, 0.114)
SMOOTH = (1, 1, 1, 1, 5, 1, 1, 1, 1)


def recolor(image: tf.Tensor, kind: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    changes = {
        Color.NONE: lambda: image,
        Color.BRIGHTNESS: lambda: blend(tf.zeros_like(image), image, amount),
        Color.CONTRAST: lambda: blend(tf.round(tf.reduce_mean(gray(image))), image, amount),
        Color.SATURATION: lambda: blend(gray(image), image, amount),
        Color.SHARPNESS: lambda: blend(smooth(image), image, amount),
        Color.POSTERIZE: lambda: posterize(image, amount),
        Color.SOLARIZE: lambda: tf.where(image < amount, image, 255 - image),
        Color.AUTOCONTRAST: lambda: stretch(image),
        Color.EQUALIZE: lambda: equalize(image),
    }
    return tf.switch_case(tf.cast(kind, tf.int32), [changes[each] for each in Color])


def blend(other: tf.Tensor, image: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value(other + amount * (image - other), 0, 255)


def gray(image: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(image * LUMA, axis=-1, keepdims=True)


def smooth(image: tf.Tensor) -> tf.Tensor:
    kernel = tf.constant(SMOOTH, tf.float32, [3, 3, 1, 1]) / sum(SMOOTH)
    padded = tf.pad(image, [[1, 1], [1, 1], [0, 0]], "SYMMETRIC")[None]
    return tf.nn.depthwise_conv2d(padded, tf.tile(kernel, [1, 1, 3, 1]), [1] * 4, "VALID")[0]


def posterize(image: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    step = 2 ** (8 - bits)
    return tf.floor(tf.round(image) / step) * step


def stretch(image: tf.Tensor) -> tf.Tensor:
    """Stretch each channel over all values."""
    low, high = tf.reduce_min(image, [0, 1]), tf.reduce_max(image, [0, 1])
    return tf.where(high > low, (image - low) * 255 / tf.maximum(high - low, 1), image)


def equalize(image: tf.Tensor) -> tf.Tensor:
    """Make all values of each channel about equally frequent."""
    return tf.stack([equalize_channel(channel) for channel in tf.unstack(image, num=3, axis=-1)], axis=-1)


def equalize_channel(channel: tf.Tensor) -> tf.Tensor:
    levels = tf.cast(tf.round(channel), tf.int32)
    counts = tf.math.bincount(tf.reshape(levels, [-1]), minlength=256, maxlength=256)
    step = (tf.size(levels) - counts[tf.reduce_max(levels)]) // 255
    table = (tf.cumsum(counts, exclusive=True) + step // 2) // tf.maximum(step, 1)
    return tf.where(step > 0, tf.cast(tf.minimum(tf.gather(table, levels), 255), tf.float32), channel)
