"""Images of different sizes, of which a few products of matrices cut, scale and mirror parts.

To do this with one image after the other keeps the host busy, which has to launch the steps.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kubetrain_trainer.pytorch_ddp.jpeg_files import JpegFile, packed_length


def fitted(images: Sequence[Tensor], files: Sequence[JpegFile]) -> Tensor:
    """Return what the model sees of the images, as one uint8 tensor, interpolated as resize() of images.py does."""
    parts = _packed([_part(image, file) for image, file in zip(images, files, strict=True)])
    lengths = torch.tensor([[bottom - top, right - left] for left, top, right, bottom in (each.part for each in files)])
    scaled = torch.tensor([each.scaled for each in files])
    places = torch.arange(files[0].side) + ((scaled - files[0].side) // 2)[..., None]  # of the center
    is_flipped = torch.tensor([each.is_flipped for each in files])[:, None]
    down, across = places.unbind(1)
    rows = _weights(down, lengths[:, 0], scaled[:, 0], parts.shape[2], parts)
    columns = _weights(
        torch.where(is_flipped, across.flip(1), across), lengths[:, 1], scaled[:, 1], parts.shape[3], parts
    )
    return (rows[:, None] @ (parts @ columns.mT[:, None])).round_().to(torch.uint8)


def _part(image: Tensor, file: JpegFile) -> Tensor:
    left, top, right, bottom = file.part
    return image[:, top:bottom, left:right]


def _packed(parts: Sequence[Tensor]) -> Tensor:
    """Return the parts in one tensor, each in a corner of its own place, in floats that hold 0 to 255 exactly."""
    device = parts[0].device
    height, width = (packed_length(max(each.shape[axis] for each in parts)) for axis in (1, 2))
    kind = torch.float16 if device.type == "cuda" else torch.float32
    packed = torch.zeros(len(parts), 3, height, width, dtype=kind, device=device)
    corners = [place[:, : part.shape[1], : part.shape[2]] for place, part in zip(packed, parts, strict=True)]
    torch._foreach_copy_(corners, [*parts])
    return packed


def _weights(places: Tensor, lengths: Tensor, scaled: Tensor, longest: int, like: Tensor) -> Tensor:
    """Return the weight of each pixel along an axis for each place in the scaled image: a triangle as wide as a place,
    or as a pixel if that is wider."""
    places, lengths, scaled = (each.to(like.device, torch.float32)[..., None] for each in (places, lengths, scaled))
    ratio = (lengths / scaled)[..., None]
    pixels = torch.arange(longest, device=like.device)
    distances = (pixels + 0.5 - (places + 0.5) * ratio).abs()
    weights = (1 - distances / ratio.clamp(min=1)).clamp(min=0) * (pixels < lengths[..., None])
    return (weights / weights.sum(-1, keepdim=True)).to(like.dtype)
