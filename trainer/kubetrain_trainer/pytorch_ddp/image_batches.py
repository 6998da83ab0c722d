"""Batches of images, mixed if the recipe mixes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.utils.data import default_collate

from kubetrain_trainer.augmentation import Box
from kubetrain_trainer.pytorch_ddp.augmented_images import inside

Pairs = Sequence[tuple[float, Box]]
"""How to mix each two images in sequence: the weight of the other one, and the part in which it counts."""


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
