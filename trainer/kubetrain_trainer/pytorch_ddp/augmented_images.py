"""Training images, changed at random by the recipe."""

import random
from functools import cache
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from kubetrain_trainer.augmentation import NOTHING, UNCHANGED, Affine, Box, Drawn, draw
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.image_folder import ImageFolder
from kubetrain_trainer.image_input import MEAN
from kubetrain_trainer.left_out import LeftOut
from kubetrain_trainer.pytorch_ddp.image_colors import recolor
from kubetrain_trainer.pytorch_ddp.images import StoredImages, channels_first, resize
from kubetrain_trainer.tar_shards import TarShards

GRAY = tuple(round(255 * each) for each in MEAN)
"""The color of pixels that no image gives, which is zero for the model."""


class AugmentedImages(StoredImages):
    def __init__(self, images: ImageFolder | TarShards, config: TrainConfig) -> None:
        super().__init__(images, config)
        self._recipe = config.augmentation
        self.left_out = LeftOut(config.skip_damaged)

    def __getitem__(self, index: int) -> Any:
        """Return the image and the label, and how to mix them with the next sample's if the recipe mixes."""
        drawn = draw(self._recipe, random)  # which the loader has seeded for this sample
        image = changed(self._pixels_of(index, self._images.read(index), drawn), drawn)
        sample = image, int(self._images.labels[index])
        return (*sample, drawn.mixed) if self._recipe.mixes else sample

    def _pixels_of(self, index: int, content: bytes, drawn: Drawn) -> Tensor:
        if self._recipe.crop_area == 1:
            return self._fitted(index, content)
        image = self._decode(index, self._pixels, drawn.cropped, content)
        crop = channels_first(image.crop(crop_of(drawn, *image.size)))
        return resize(crop, self._pixels, self._pixels)


def changed(pixels: Tensor, drawn: Drawn) -> Tensor:
    if drawn.is_flipped:
        pixels = pixels.flip(-1)
    if drawn.affine != UNCHANGED or drawn.colors:
        pixels = channels_first(repainted(Image.fromarray(pixels.permute(1, 2, 0).numpy()), drawn))
    return erased(pixels, drawn.erased)


def erased(pixels: Tensor, part: Box) -> Tensor:
    if part != NOTHING:
        left, top, right, bottom = inside(part, *pixels.shape[1:])
        pixels[:, top:bottom, left:right] = _gray(pixels.device)
    return pixels


@cache
def _gray(device: torch.device) -> Tensor:
    return torch.tensor(GRAY, dtype=torch.uint8, device=device)[:, None, None]


def repainted(image: Image.Image, drawn: Drawn) -> Image.Image:
    if drawn.affine != UNCHANGED:
        image = moved(image, drawn.affine)
    for kind, amount in drawn.colors:
        image = recolor(image, kind, amount)
    return image


def moved(image: Image.Image, affine: Affine) -> Image.Image:
    a, b, c, d, e, f = affine
    size = image.width
    from_corner = (a, b, size * (c + (1 - a - b) / 2), d, e, size * (f + (1 - d - e) / 2))
    return image.transform(image.size, Image.Transform.AFFINE, from_corner, Image.Resampling.BILINEAR, fillcolor=GRAY)


def crop_of(drawn: Drawn, width: int, height: int) -> tuple[int, int, int, int]:
    """Return the part to keep, of at least one pixel."""
    left, top, right, bottom = inside(drawn.cropped(width, height), width, height)
    left, top = min(left, width - 1), min(top, height - 1)
    return left, top, max(right, left + 1), max(bottom, top + 1)


def inside(box: Box, width: int, height: int) -> tuple[int, int, int, int]:
    left, top, right, bottom = box
    return round(left * width), round(top * height), round(right * width), round(bottom * height)
