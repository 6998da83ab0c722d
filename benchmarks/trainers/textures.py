"""Generate pictures of patterns, of many tones, sizes and directions, unevenly lit, noisy and partly hidden.

The mirror image of each pattern has the same class.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

PIXELS = 96
Grid = np.ndarray


def from_middle(places: Grid) -> Grid:
    """Return the distance from the middle of each unit, up to 0.5."""
    return np.abs(places % 1 - 0.5)


Pattern = Callable[[Grid, Grid, float], Grid]
PATTERNS: dict[str, Pattern] = {
    "stripes": lambda x, y, width: from_middle(x) < width,
    "checks": lambda x, y, width: (from_middle(x) < 0.25) ^ (from_middle(y) < 0.25),
    "dots": lambda x, y, width: from_middle(x) ** 2 + from_middle(y) ** 2 < width**2,
    "rings": lambda x, y, width: from_middle(np.hypot(x, y)) < width,
    "waves": lambda x, y, width: from_middle(x + 0.3 * np.sin(2 * np.pi * y)) < width,
    "grid": lambda x, y, width: (from_middle(x) > 0.5 - width / 2) | (from_middle(y) > 0.5 - width / 2),
    "bricks": lambda x, y, width: (from_middle(x + 0.5 * (y // 1 % 2)) > 0.45) | (from_middle(2 * y) > 0.4),
}

OTHER_PATTERNS: dict[str, Pattern] = {
    "squares": lambda x, y, width: np.maximum(from_middle(x), from_middle(y)) < width,
    "diamonds": lambda x, y, width: from_middle(x) + 2.5 * from_middle(y) < 1.5 * width,
    "crosses": lambda x, y, width: np.minimum(from_middle(x), from_middle(y)) < (from_middle(x - 0.5) > width) * 0.1,
    "circles": lambda x, y, width: np.abs(np.hypot(from_middle(x), from_middle(y)) - 0.3) < width / 3,
    "plaid": lambda x, y, width: (from_middle(x) < width / 2) | (from_middle(3 * y) < width / 2),
}
"""To train on before."""


def write_textures(
    folder: Path, training: int, others: int, patterns: Mapping[str, Pattern] = PATTERNS, seed: int = 0
) -> None:
    """Write this many pictures of each pattern for training, and for validation and for the test."""
    random = np.random.default_rng(seed)
    for split, count in (("train", training), ("val", others), ("test", others)):
        for name, pattern in patterns.items():
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                picture(pattern, random).save(folder / split / name / f"{number:04}.jpg", quality=90)


def picture(pattern: Pattern, random: np.random.Generator) -> Image.Image:
    angle, size = random.uniform(0, 2 * np.pi), random.uniform(12, 40)
    row, column = np.indices((PIXELS, PIXELS)) / size - random.uniform(0, PIXELS / size, (2, 1, 1))
    x, y = np.cos(angle) * column - np.sin(angle) * row, np.sin(angle) * column + np.cos(angle) * row
    is_drawn = pattern(x, y, random.uniform(0.15, 0.3))[..., None]
    tones = random.uniform((0, 150), (100, 255))[:, None] + random.uniform(-20, 20, (2, 3))
    colored = np.where(is_drawn, *random.permutation(tones))
    brightness = coarse(random, 3, 0.4, 1.2)
    noisy = colored * brightness + random.normal(0, random.uniform(0, 10), colored.shape)
    is_hidden = coarse(random, 5, 0, 1) > random.uniform(0.8, 1)
    seen = np.where(is_hidden, random.uniform(0, 255, 3), noisy)
    return Image.fromarray(seen.clip(0, 255).astype(np.uint8))


def coarse(random: np.random.Generator, cells: int, low: float, high: float) -> Grid:
    """Return values between two that change slowly over the picture."""
    image = Image.fromarray(random.uniform(low, high, (cells, cells)).astype(np.float32))
    return np.asarray(image.resize((PIXELS, PIXELS), Image.Resampling.BICUBIC))[..., None]
