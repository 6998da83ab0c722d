"""Batches of images, mixed if the recipe mixes. The device decodes the JPEG files in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.utils.data import default_collate

from kubetrain_trainer.augmentation import Box
from kubetrain_trainer.pytorch_ddp.augmented_images import erased, inside
from kubetrain_trainer.pytorch_ddp.fitted_images import fitted
from kubetrain_trainer.pytorch_ddp.jpeg_files import JpegFile, decode, in_chunks

Pairs = Sequence[tuple[float, Box]]
"""How to mix each two images in sequence: the weight of the other one, and the part in which it counts."""


def mixed_batch(samples: list[Any], classes: int) -> Any:
    """Make a batch, mixing the samples two by two if they say how. Their labels become shares of classes."""
    images, labels, *mixed = zip(*samples, strict=True)
    pairs = mixed[0][:-1:2] if mixed else ()
    batch = EncodedBatch.of(images, pairs) if any(map(is_file, images)) else mix(default_collate([*images]), pairs)
    targets = torch.tensor(labels)
    return batch, mix_targets(one_hot(targets, classes).float(), pairs, side_of(images[0])) if mixed else targets


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


@dataclass(frozen=True, kw_only=True)
class EncodedBatch:
    """Images, of which some are JPEG files."""

    pixels: Tensor
    """The other images."""
    contents: Tensor
    """The bytes of all files, in one tensor, because each tensor that is sent takes a file descriptor."""
    lengths: list[int]
    files: list[JpegFile]
    """The files, whose bytes are elsewhere."""
    order: Tensor
    """The place of each image among the others and the files after them."""
    pairs: Pairs

    @classmethod
    def of(cls, images: Sequence[Tensor | JpegFile], pairs: Pairs) -> "EncodedBatch":
        others = [each for each in images if isinstance(each, Tensor)]
        files = [each for each in images if isinstance(each, JpegFile)]
        side = files[0].side
        return cls(
            pixels=torch.stack(others) if others else torch.empty(0, 3, side, side, dtype=torch.uint8),
            contents=torch.frombuffer(bytearray().join(each.content for each in files), dtype=torch.uint8),
            lengths=[len(each.content) for each in files],
            files=[each._replace(content=b"") for each in files],
            order=torch.tensor(list(map(is_file, images))).argsort(stable=True).argsort(),
            pairs=pairs,
        )

    def to(self, device: torch.device) -> Tensor:
        """Return the pixels of all images.

        Raises:
            UndecodedFiles: if the device cannot decode one of the files.
        """
        contents = torch.split(self.contents, self.lengths)
        made = [made_of(self.files[chunk], contents[chunk], device) for chunk in in_chunks(self.files)]
        return mix(torch.cat([self.pixels.to(device), *made])[self.order.to(device)], self.pairs)


def made_of(files: Sequence[JpegFile], contents: Sequence[Tensor], device: torch.device) -> Tensor:
    images = fitted(decode(contents, device), files)
    for image, file in zip(images, files, strict=True):
        erased(image, file.erased)
    return images


def is_file(image: Tensor | JpegFile) -> bool:
    return isinstance(image, JpegFile)


def side_of(image: Tensor | JpegFile) -> int:
    return image.side if isinstance(image, JpegFile) else image.shape[-1]
