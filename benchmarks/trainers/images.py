"""Generate an image folder: JPEGs of smoothed noise, which compresses like photographs."""

from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (500, 375)


def write_images(folder: Path, count: int, classes: int = 10, size: tuple[int, int] = SIZE) -> None:
    random = np.random.default_rng(0)
    for split, number in (("train", count), ("val", classes), ("test", classes)):
        for index in range(number):
            path = folder / split / f"class-{index % classes}" / f"{index:05}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            rough = random.integers(0, 256, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
            Image.fromarray(rough).resize(size, Image.Resampling.BICUBIC).save(path, quality=85)
