"""Training images, changed at random by the recipe, and their batches, mixed if the recipe mixes."""

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torch.nn.functional import one_hot
from torch.utils.data import default_collate

from kubetrain_trainer.data.image_folder import ImageFolder
from kubetrain_trainer.data.left_out import LeftOut
from kubetrain_trainer.data.tar_shards import TarShards
from kubetrain_trainer.output.image_input import MEAN
from kubetrain_trainer.pytorch_ddp.images.decoded_images import StoredImages, channels_first, resize
from kubetrain_trainer.settings.augmentation import NOTHING, UNCHANGED, Affine, Box, Color, Drawn, draw
from kubetrain_trainer.settings.config import TrainConfig

CHANGES: dict[Color, Callable[[Image.Image, float], Image.Image]] = {
    Color.NONE: lambda image, amount: image,
    Color.BRIGHTNESS: lambda image, amount: ImageEnhance.Brightness(image).enhance(amount),
    Color.CONTRAST: lambda image, amount: ImageEnhance.Contrast(image).enhance(amount),
    Color.SATURATION: lambda image, amount: ImageEnhance.Color(image).enhance(amount),
    Color.SHARPNESS: lambda image, amount: ImageEnhance.Sharpness(image).enhance(amount),
    Color.POSTERIZE: lambda image, amount: ImageOps.posterize(image, int(amount)),
    Color.SOLARIZE: lambda image, amount: ImageOps.solarize(image, int(amount)),
    Color.AUTOCONTRAST: lambda image, amount: ImageOps.autocontrast(image),
    Color.EQUALIZE: lambda image, amount: ImageOps.equalize(image),
}
GRAY = tuple(round(255 * mean) for mean in MEAN)
"""The color of pixels that no image gives, which is zero for the model."""
Pairs = Sequence[tuple[float, Box]]
"""How to mix each two images in sequence: the weight of the other one, and the part in which it counts."""


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
        image = CHANGES[kind](image, amount)
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


def mixed_batch(samples: list[Any], classes: int) -> Any:
    """Make a batch, mixing the samples two by two if they say how. Their labels become shares of classes."""
    images, labels, *mixed = zip(*samples, strict=True)
    pairs = mixed[0][:-1:2] if mixed else ()
    batch, targets = mix(default_collate([*images]), pairs), torch.tensor(labels)
    return batch, mix_targets(one_hot(targets, classes).float(), pairs, batch.shape[-1]) if mixed else targets


def mix(images: Tensor, pairs: Pairs) -> Tensor:
    for number, (weight, part) in enumerate(pairs):
        left, top, right, bottom = inside(part, *images.shape[2:])
        region = images[2 * number : 2 * number + 2, :, top:bottom, left:right]
        region.copy_(blended(region.float(), weight).round())
    return images


def mix_targets(targets: Tensor, pairs: Pairs, side: int) -> Tensor:
    for number, (weight, part) in enumerate(pairs):
        left, top, right, bottom = inside(part, side, side)
        pair = targets[2 * number : 2 * number + 2]
        pair.copy_(blended(pair, weight * (right - left) * (bottom - top) / side**2))
    return targets


def blended(pair: Tensor, weight: float) -> Tensor:
    """Blend each of two with the other, which has this weight."""
    return pair.lerp(pair.flip(0), weight)
