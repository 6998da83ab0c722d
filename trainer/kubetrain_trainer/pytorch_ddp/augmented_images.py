"""Training images, changed at random by the recipe."""

import random
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import one_hot
from torch.utils.data import default_collate

from kubetrain_trainer.augmentation import UNCHANGED, Affine, Box, Drawn, draw
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
        """Return the pixels and the label, and how to mix them with the next sample's if the recipe mixes."""
        drawn = draw(self._recipe, random)  # which the loader has seeded for this sample
        is_cropped = self._recipe.crop_area < 1
        pixels = self._cropped(index, drawn) if is_cropped else self._fitted(index)
        sample = changed(pixels, drawn), int(self._images.labels[index])
        return (*sample, drawn.mixed) if self._recipe.mixes else sample

    def _cropped(self, index: int, drawn: Drawn) -> Tensor:
        image = self._decode(index, self._pixels, drawn.cropped)
        crop = channels_first(image.crop(inside(drawn.cropped(*image.size), *image.size)))
        return resize(crop, self._pixels, self._pixels)


def changed(pixels: Tensor, drawn: Drawn) -> Tensor:
    if drawn.is_flipped:
        pixels = pixels.flip(-1)
    if drawn.affine != UNCHANGED or drawn.colors:
        pixels = channels_first(repainted(Image.fromarray(pixels.permute(1, 2, 0).numpy()), drawn))
    left, top, right, bottom = inside(drawn.erased, *pixels.shape[1:])
    pixels[:, top:bottom, left:right] = torch.tensor(GRAY, dtype=torch.uint8)[:, None, None]
    return pixels


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


def inside(box: Box, width: int, height: int) -> tuple[int, int, int, int]:
    left, top, right, bottom = box
    return round(left * width), round(top * height), round(right * width), round(bottom * height)


def mixed_batch(samples: list[Any], classes: int) -> Any:
    """Make a batch, mixing the samples two by two if they say how. Their labels become shares of classes."""
    if len(samples[0]) == 2:
        return default_collate(samples)
    images = torch.stack([image for image, _, _ in samples])
    targets = one_hot(torch.tensor([label for _, label, _ in samples]), classes).float()
    for first in range(0, len(samples) - 1, 2):
        pair = slice(first, first + 2)
        mix_pair(images[pair], targets[pair], *samples[first][2])
    return images, targets


def mix_pair(images: Tensor, targets: Tensor, weight: float, part: Box) -> None:
    left, top, right, bottom = inside(part, *images.shape[2:])
    region = images[..., top:bottom, left:right]
    region.copy_(blended(region.float(), weight).round())
    targets.copy_(blended(targets, weight * region[0, 0].numel() / images[0, 0].numel()))


def blended(pair: Tensor, weight: float) -> Tensor:
    """Blend each of two with the other, which has this weight."""
    return pair.lerp(pair.flip(0), weight)
