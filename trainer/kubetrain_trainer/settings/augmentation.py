"""How training images are changed at random: the recipes, and what is drawn for each image.

Both frameworks apply what is drawn here. It depends only on the seed, the epoch and the image's index, so that an image
is the same after a resumption and with another number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import cos, exp, log, radians, sin, sqrt
from typing import Any, ClassVar, Protocol, Tuple

from kubetrain_trainer.settings.base import Settings, setting

RATIOS = (3 / 4, 4 / 3)
"""Width to height of random crops."""
SMALLEST_CROP = 0.01
ERASED_AREAS, ERASED_RATIOS = (0.02, 1 / 3), (0.3, 3.3)
STRONGEST = 30
"""The magnitude at which the operations of RandAugment change images most."""
Box = Tuple[float, float, float, float]
"""Left, top, right and bottom of a part of an image, as fractions of its width and height."""
WHOLE, NOTHING = (0.0, 0.0, 1.0, 1.0), (0.0, 0.0, 0.0, 0.0)
Affine = Tuple[float, ...]
"""The six numbers of an affine map from the places of the changed image to those of the image, both from the center."""
UNCHANGED = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


class Random(Protocol):
    """The module random, or a generator of it."""

    def random(self) -> float: ...
    def uniform(self, a: float, b: float) -> float: ...
    def choice(self, seq: Sequence[Any]) -> Any: ...
    def betavariate(self, alpha: float, beta: float) -> float: ...


@dataclass(frozen=True)
class Recipe(Settings):
    """The options in the setting `augment`."""

    GROUP: ClassVar[str] = "train.augment"

    crop_area: float = setting(
        1.0,
        "smallest part of an image's area that a random crop keeps, between 3:4 and 4:3; 1: no random crop",
        minimum=SMALLEST_CROP,
        maximum=1,
    )
    flip: float = setting(0.0, "probability of mirroring an image", minimum=0, maximum=1)
    color_jitter: float = setting(
        0.0, "most that brightness, contrast and saturation change, as a fraction", minimum=0, maximum=1
    )
    rand_augment: int = setting(0, "number of operations of RandAugment for each image", minimum=0, maximum=5)
    rand_augment_magnitude: int = setting(9, "strength of the operations of RandAugment", minimum=0, maximum=STRONGEST)
    erase: float = setting(0.0, "probability of erasing a part of an image", minimum=0, maximum=1)
    mixup: float = setting(
        0.0,
        "alpha of the beta distribution that says how far two images are blended; 0: not at all. If cutmix is set too, "
        "each pair gets one of them",
        minimum=0,
    )
    cutmix: float = setting(
        0.0,
        "alpha of the beta distribution that says how large a part of an image another one replaces; 0: none",
        minimum=0,
    )

    @property
    def mixes(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0

    @property
    def colors(self) -> int:
        """The most changes of an image's colors."""
        return self.rand_augment + (3 if self.color_jitter else 0)

    @property
    def is_used(self) -> bool:
        return self != Recipe(rand_augment_magnitude=self.rand_augment_magnitude)


RECIPES = {
    "none": Recipe(),
    "standard": Recipe(crop_area=0.25, flip=0.5),
    "strong": Recipe(crop_area=0.25, flip=0.5, rand_augment=2, erase=0.25, mixup=0.2, cutmix=1.0),
}


class Color(IntEnum):
    """The changes of colors. The first four blend the image with another, as much as their amount says."""

    NONE = 0
    BRIGHTNESS = 1
    CONTRAST = 2
    SATURATION = 3
    SHARPNESS = 4
    POSTERIZE = 5
    SOLARIZE = 6
    AUTOCONTRAST = 7
    EQUALIZE = 8


@dataclass(frozen=True)
class Drawn:
    """The changes of one image. Places are fractions of width and height."""

    crop: tuple[float, float, float, float]
    """The area, the ratio of width to height, and where the crop is between left and right, top and bottom."""
    is_flipped: bool
    affine: Affine
    colors: tuple[tuple[Color, float], ...]
    erased: Box
    mixed: tuple[float, Box]
    """The weight of the next image, and the part of both images in which it counts."""

    def cropped(self, width: int, height: int) -> Box:
        area, ratio, x, y = self.crop
        return placed(area, ratio * height / width, x, y)


def draw(recipe: Recipe, random: Random) -> Drawn:
    geometry, colors = rand_augment(recipe, random)
    return Drawn(
        crop=(random.uniform(recipe.crop_area, 1), log_uniform(*RATIOS, random), random.random(), random.random()),
        is_flipped=random.random() < recipe.flip,
        affine=geometry,
        colors=(*jitter(recipe.color_jitter, random), *colors),
        erased=erased_box(random) if random.random() < recipe.erase else NOTHING,
        mixed=mixed(recipe, random),
    )


def jitter(strength: float, random: Random) -> list[tuple[Color, float]]:
    if not strength:
        return []
    kinds = (Color.BRIGHTNESS, Color.CONTRAST, Color.SATURATION)
    return [(kind, random.uniform(max(0, 1 - strength), 1 + strength)) for kind in kinds]


def rand_augment(recipe: Recipe, random: Random) -> tuple[Affine, list[tuple[Color, float]]]:
    """Draw the operations of RandAugment, and return the map of those that move pixels, and the changes of colors.

    Colors change after the pixels were moved.
    """
    affine: Affine = UNCHANGED
    colors = []
    for _ in range(recipe.rand_augment):
        kind = random.choice((*Color, *MOVES))
        strength = recipe.rand_augment_magnitude / STRONGEST
        signed = random.choice((-strength, strength))
        if isinstance(kind, Color):
            colors.append((kind, color_amount(kind, signed)))
        else:
            affine = combined(affine, MOVES[kind](signed))
    return affine, colors


def color_amount(kind: Color, strength: float) -> float:
    if kind is Color.POSTERIZE:
        return float(8 - round(4 * abs(strength)))  # bits that are left
    if kind is Color.SOLARIZE:
        return 255 * (1 - abs(strength))  # brighter values are inverted
    return 1 + 0.9 * strength


def rotation(strength: float) -> Affine:
    angle = radians(30 * strength)
    return cos(angle), sin(angle), 0.0, -sin(angle), cos(angle), 0.0


MOVES: dict[str, Callable[[float], Affine]] = {
    "rotate": rotation,
    "shear_x": lambda strength: (1.0, 0.3 * strength, 0.0, 0.0, 1.0, 0.0),
    "shear_y": lambda strength: (1.0, 0.0, 0.0, 0.3 * strength, 1.0, 0.0),
    "translate_x": lambda strength: (1.0, 0.0, 0.45 * strength, 0.0, 1.0, 0.0),
    "translate_y": lambda strength: (1.0, 0.0, 0.0, 0.0, 1.0, 0.45 * strength),
}


def combined(first: Affine, then: Affine) -> Affine:
    """Return the map that looks up a place by `then`, and the result by `first`."""
    a, b, c, d, e, f = first
    g, h, i, j, k, m = then
    return a * g + b * j, a * h + b * k, a * i + b * m + c, d * g + e * j, d * h + e * k, d * i + e * m + f


def erased_box(random: Random) -> Box:
    return placed(random.uniform(*ERASED_AREAS), log_uniform(*ERASED_RATIOS, random), random.random(), random.random())


def placed(area: float, ratio: float, x: float, y: float) -> Box:
    """Return a part of an image, no wider or higher than the image."""
    width, height = min(1.0, sqrt(area * ratio)), min(1.0, sqrt(area / ratio))
    left, top = x * (1 - width), y * (1 - height)
    return left, top, left + width, top + height


def mixed(recipe: Recipe, random: Random) -> tuple[float, Box]:
    """Draw a weight for the whole image (mixup), or a part that the next image replaces (CutMix)."""
    kinds = [kind for kind in ("mixup", "cutmix") if getattr(recipe, kind)]
    if not kinds:
        return 0, WHOLE
    kind = random.choice(kinds)
    alpha = getattr(recipe, kind)
    share = random.betavariate(alpha, alpha)
    return (share, WHOLE) if kind == "mixup" else (1, placed(share, 1, random.random(), random.random()))


def log_uniform(low: float, high: float, random: Random) -> float:
    return exp(random.uniform(log(low), log(high)))
