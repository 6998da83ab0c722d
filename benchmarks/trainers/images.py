"""Generate an image folder: JPEGs of smoothed noise, which compresses like photographs."""

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from kubetrain_trainer.processes.resources import usable_cpus

SIZE = (500, 375)


def write_images(folder: Path, count: int, classes: int = 10, size: tuple[int, int] = SIZE) -> None:
    counts = (("train", count), ("val", classes), ("test", classes))
    paths = [
        folder / split / f"class-{index % classes}" / f"{index:05}.jpg"
        for split, number in counts
        for index in range(number)
    ]
    for parent in {path.parent for path in paths}:
        parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(usable_cpus()) as pool:
        list(pool.map(partial(write_image, size=size), range(len(paths)), paths, chunksize=64))


def write_image(seed: int, path: Path, size: tuple[int, int]) -> None:
    rough = np.random.default_rng(seed).integers(0, 256, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
    Image.fromarray(rough).resize(size, Image.Resampling.BICUBIC).save(path, quality=85)
