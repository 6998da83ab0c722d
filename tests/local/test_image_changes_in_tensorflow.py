"""Changes and parts of images in TensorFlow, each compared with Pillow's or TensorFlow's own."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

CHANGES = """
import numpy as np
import tensorflow as tf
from PIL import Image

from kubetrain_trainer.settings.augmentation import Color
from kubetrain_trainer.pytorch_ddp.images.augmented_images import CHANGES
from kubetrain_trainer.tensorflow_multiworker.images.augmented_images import GRAY, erase, move
from kubetrain_trainer.tensorflow_multiworker.images.augmented_images import recolor
from kubetrain_trainer.tensorflow_multiworker.images.decoded_images import resize

random = np.random.default_rng(0)


def photograph(height, width):
    small = random.integers(20, 200, (height // 5, width // 5, 3), np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


AMOUNTS = {Color.POSTERIZE: (3, 7), Color.SOLARIZE: (90, 128)}
FEW = np.tile(np.array([[[10, 80, 255], [30, 80, 0]]], np.uint8), (40, 20, 1))
for levels in (photograph(40, 40), photograph(45, 65), np.full((40, 40, 3), 77, np.uint8), FEW):
    for kind in Color:
        for amount in AMOUNTS.get(kind, (0.3, 1.6)):
            expected = np.asarray(CHANGES[kind](Image.fromarray(levels), amount), np.float32)
            numbers = (tf.constant(each, tf.float32) for each in (levels, kind, amount))
            seen = recolor(*numbers).numpy()
            assert seen.shape == levels.shape
            inner = (slice(1, -1), slice(1, -1))  # Pillow leaves the outermost pixels as they are when it smooths
            worst = np.abs(seen - expected)[inner].max()
            assert worst <= 1.5, (kind.name, amount, worst)

for height, width in ((375, 500), (90, 60), (224, 224)):
    image = photograph(height, width)
    for size in ((224, 224), (100, 150)):
        np.testing.assert_allclose(resize(image, *size), tf.image.resize(image, size, antialias=True), atol=1e-3)

levels = photograph(40, 40)
image = tf.constant(levels, tf.float32)
for affine in ((0.9, 0.3, 0.0, -0.3, 0.9, 0.0), (1.0, 0.25, 0.0, 0.0, 1.0, 0.0), (1.0, 0.0, 0.2, 0.0, 1.0, -0.1)):
    a, b, c, d, e, f = affine
    of_pillow = (a, b, 40 * (c + (1 - a - b) / 2), d, e, 40 * (f + (1 - d - e) / 2))
    gray = tuple(map(int, GRAY))
    expected = Image.fromarray(levels).transform((40, 40), Image.AFFINE, of_pillow, Image.BILINEAR, fillcolor=gray)
    differences = np.abs(move(image, tf.constant(affine)) - np.asarray(expected, np.float32))
    assert np.quantile(differences, 0.9) < 1, affine  # Pillow does not blend edges with the gray

erased = erase(image, tf.constant([0.25, 0.5, 0.5, 0.75])).numpy()
np.testing.assert_allclose(erased[20:30, 10:20], np.broadcast_to(GRAY, (10, 10, 3)), atol=1e-3)
erased[20:30, 10:20] = image[20:30, 10:20]
np.testing.assert_array_equal(erased, image)
"""


PARTS = """
import io
from functools import partial

import numpy as np
import tensorflow as tf
from PIL import Image

from kubetrain_trainer.tensorflow_multiworker.images.augmented_images import cropped_part
from kubetrain_trainer.tensorflow_multiworker.images.decoded_images import cut, decode, shorter_side_surplus

random = np.random.default_rng(0)


def encoded(mode, form, **options):
    channels = len(Image.new(mode, (1, 1)).getbands())
    small = random.integers(0, 255, (40, 60, channels), np.uint8)
    image = Image.fromarray(small.squeeze(), mode).resize((601, 397), Image.Resampling.BICUBIC)
    image.save(file := io.BytesIO(), form, **options)
    return file.getvalue()


JPEG = [encoded("RGB", "JPEG", subsampling=number, progressive=number == 1) for number in range(3)]
OTHERS = [encoded("CMYK", "JPEG"), encoded("L", "JPEG"), encoded("RGB", "PNG")]
for content in (*JPEG, *OTHERS, JPEG[0] + b"more"):
    for pixels in (20, 70, 300):
        drawn = tf.constant([*random.uniform(0.1, 1, 2), *random.uniform(size=2)], tf.float32)
        surplus, part = shorter_side_surplus(pixels), partial(cropped_part, drawn=drawn)
        whole, seen = decode(content, surplus, None), decode(content, surplus, part).numpy()
        expected = cut(lambda: whole, part(tf.shape(whole)[:2])).numpy()
        assert seen.shape == expected.shape != whole.shape
        np.testing.assert_array_equal(seen[:, 1:-1], expected[:, 1:-1])  # at edges, colors know no neighbors
        assert np.abs(seen.astype(int) - expected).mean() < 0.5

first_rows = partial(cropped_part, drawn=tf.constant([0.1, 1, 0, 0], tf.float32))
for damaged in (JPEG[0][:-2000], JPEG[0][:-2000] + bytes(2000)):
    try:
        decode(damaged, shorter_side_surplus(300), first_rows)
    except tf.errors.InvalidArgumentError as error:
        pass
    else:
        raise AssertionError("a file that lacks its end was decoded")
"""


@pytest.mark.parametrize("program", [CHANGES, PARTS], ids=["changes", "parts"])
def test_images_are_those_of_pillow_and_parts_those_of_whole_images(program: str) -> None:
    """Run in a separate process: torch crashes if it is imported after TensorFlow."""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
