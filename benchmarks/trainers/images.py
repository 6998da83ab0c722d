"""Generate an image folder: 500 x 375 JPEGs of smoothed noise, which compresses like photographs."""

from pathlib import Path

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 500, 375


def write_images(folder: Path, count: int, classes: int = 10) -> None:
    random = np.random.default_rng(0)
    for split, number in (("train", count), ("val", classes), ("test", classes)):
        for index in range(number):
            path = folder / split / f"class-{index % classes}" / f"{index:05}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            rough = random.integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), dtype=np.uint8)
            Image.fromarray(rough).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(path, quality=85)
