"""Generate pictures of seven shapes, of any color, size, place and rotation, in front of cluttered backgrounds.

The mirror image of each shape has the same class.
"""

import math
from pathlib import Path
from random import Random

from PIL import Image, ImageDraw, ImageFilter

PIXELS = 96
Point = tuple[float, float]


def star(points: int, inner: float) -> list[Point]:
    radii = [1.0, inner] * points
    return [turned(radius, math.pi * number / points) for number, radius in enumerate(radii)]


def turned(radius: float, angle: float) -> Point:
    return radius * math.cos(angle), radius * math.sin(angle)


SHAPES: dict[str, list[Point]] = {
    "triangle": star(3, 0.5),
    "square": star(4, math.sqrt(0.5)),
    "hexagon": star(6, math.sqrt(0.75)),
    "four-pointed star": star(4, 0.3),
    "five-pointed star": star(5, 0.4),
    "gear": star(9, 0.7),
    "arrow": [(1, 0), (0, 0.8), (0, 0.3), (-1, 0.3), (-1, -0.3), (0, -0.3), (0, -0.8)],
}


def write_shapes(folder: Path, training: int, others: int, seed: int = 0) -> None:
    """Write this many pictures of each shape for training, and for validation and for the test."""
    random = Random(seed)
    for split, count in (("train", training), ("val", others), ("test", others)):
        for name, outline in SHAPES.items():
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                picture(outline, random).save(folder / split / name / f"{number:04}.jpg", quality=90)


def picture(outline: list[Point], random: Random) -> Image.Image:
    image = background(random)
    size, angle = random.uniform(0.15, 0.4) * PIXELS, random.uniform(0, 2 * math.pi)
    x, y = (random.uniform(size, PIXELS - size) for _ in range(2))
    rotated = [turned(math.hypot(*point), math.atan2(point[1], point[0]) + angle) for point in outline]
    ImageDraw.Draw(image).polygon([(x + size * each, y + size * other) for each, other in rotated], color(random))
    for _ in range(2):  # lines may hide parts of the shape
        ImageDraw.Draw(image).line([*place(random), *place(random)], color(random), random.randint(1, 4))
    return image.filter(ImageFilter.GaussianBlur(random.uniform(0, 1.2)))


def background(random: Random) -> Image.Image:
    coarse = Image.new("RGB", (random.randint(2, 8),) * 2)
    coarse.putdata([color(random) for _ in range(coarse.width * coarse.height)])
    image = coarse.resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)
    for _ in range(random.randint(2, 8)):
        (left, top), size = place(random), random.uniform(2, 14)
        ImageDraw.Draw(image).ellipse([left, top, left + size, top + size * random.uniform(0.5, 2)], color(random))
    return image


def color(random: Random) -> tuple[int, int, int]:
    return random.randrange(256), random.randrange(256), random.randrange(256)


def place(random: Random) -> Point:
    return random.uniform(0, PIXELS), random.uniform(0, PIXELS)
