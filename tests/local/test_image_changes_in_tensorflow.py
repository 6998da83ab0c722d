"""Changes of images in TensorFlow, each compared with Pillow's or TensorFlow's own."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import numpy as np
import tensorflow as tf
from PIL import Image

from kubetrain_trainer.augmentation import Color
from kubetrain_trainer.pytorch_ddp.image_colors import recolor as recolor_by_pillow
from kubetrain_trainer.tensorflow_multiworker.augmented_images import GRAY, erase
from kubetrain_trainer.tensorflow_multiworker.image_colors import recolor
from kubetrain_trainer.tensorflow_multiworker.images import resize

random = np.random.default_rng(0)


def photograph(height, width):
    small = random.integers(20, 200, (height // 5, width // 5, 3), np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


AMOUNTS = {Color.POSTERIZE: (3, 7), Color.SOLARIZE: (90, 128)}
FEW = np.tile(np.array([[[10, 80, 255], [30, 80, 0]]], np.uint8), (40, 20, 1))
for levels in (photograph(40, 40), photograph(45, 65), np.full((40, 40, 3), 77, np.uint8), FEW):
    for kind in Color:
        for amount in AMOUNTS.get(kind, (0.3, 1.6)):
            expected = np.asarray(recolor_by_pillow(Image.fromarray(levels), kind, amount), np.float32)
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

image = tf.constant(photograph(40, 40), tf.float32)
erased = erase(image, tf.constant([0.25, 0.5, 0.5, 0.75])).numpy()
np.testing.assert_allclose(erased[20:30, 10:20], np.broadcast_to(GRAY, (10, 10, 3)), atol=1e-3)
erased[20:30, 10:20] = image[20:30, 10:20]
np.testing.assert_array_equal(erased, image)
"""


def test_changes_are_those_of_pillow() -> None:
    """Run in a separate process: torch crashes if it is imported after TensorFlow."""
    finished = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
