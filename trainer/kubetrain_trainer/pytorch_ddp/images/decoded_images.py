"""Images from files, as the built-in models take them."""

import base64
import io
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, singledispatch
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import Dataset

from kubetrain_trainer.data.given_images import GivenImages
from kubetrain_trainer.data.image_folder import ImageFolder, PackedNames
from kubetrain_trainer.data.left_out import damaged_image
from kubetrain_trainer.data.shard_index import ShardIndex
from kubetrain_trainer.data.tar_shards import TarShards, groups_of
from kubetrain_trainer.output.image_input import DEVIATION, FAITHFUL, MEAN, THUMBNAIL_PIXELS, shorter_side
from kubetrain_trainer.settings.augmentation import WHOLE, Box
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.model_names import image_size

Part = Callable[[int, int], Box]
"""Returns a part of an image by its width and height."""


class SharedArray(np.ndarray):
    """An array whose memory other processes see, because torch sends them a tensor by its file."""

    _tensor: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        array: Self = tensor.share_memory_().numpy().view(cls)  # type: ignore[no-untyped-call]
        array._tensor = tensor
        return array

    def __reduce__(self) -> Any:
        return SharedArray.of, (self._tensor,)


def share(values: Any) -> Any:
    if isinstance(values, SharedArray):
        return values
    numbers = np.frombuffer(values, np.uint8) if isinstance(values, bytearray) else values
    return SharedArray.of(torch.from_numpy(np.array(numbers)))


@singledispatch
def shared(images: Any) -> Any:
    """Return the images with their lists in shared memory, so that loading processes get them without a copy."""
    return images


@shared.register
def _(images: ImageFolder) -> ImageFolder:
    names = PackedNames(share(images.paths.text), share(images.paths.ends))
    return replace(images, paths=names, labels=share(images.labels))


@shared.register
def _(images: TarShards) -> TarShards:
    index = ShardIndex(*map(share, (images.index.offsets, images.index.sizes, images.index.labels)))
    return replace(images, index=index)


class StoredImages(Dataset[Any]):
    def __init__(self, images: ImageFolder | TarShards | GivenImages, config: TrainConfig) -> None:
        self._images = images
        self.notes = getattr(images, "notes", ())
        self.groups = groups_of(images, config)
        self._pixels, self._shorter_side = image_size(config), shorter_side(config)

    def __len__(self) -> int:
        return len(self._images.labels)

    def __getitem__(self, index: int) -> Any:
        """Return uint8 pixels (3, height, width) and the label; `prepare` normalizes whole batches on the device."""
        return self._fitted(index), int(self._images.labels[index])

    def __getstate__(self) -> dict[str, Any]:
        """Return what loading processes get."""
        self._images = shared(self._images)
        return vars(self)

    def files_checksum(self) -> int:
        return self._images.files_checksum()  # type: ignore[union-attr]

    def prepare(self, images: Tensor) -> Tensor:
        return normalize(images)

    def picture(self, index: int) -> str:
        """Return a thumbnail for the report, as a data URI."""
        thumbnail = self._decode(index, FAITHFUL * THUMBNAIL_PIXELS)
        thumbnail.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
        buffer = io.BytesIO()
        thumbnail.save(buffer, "PNG")
        return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()

    def _fitted(self, index: int, content: bytes | None = None) -> Tensor:
        image = self._decode(index, FAITHFUL * self._shorter_side, content=content)
        return fit_image(image, self._pixels, self._shorter_side)

    def _decode(
        self, index: int, pixels: int, part: Part = lambda *_: WHOLE, content: bytes | None = None
    ) -> Image.Image:
        """Return the image, which a JPEG gives at a smaller scale if a part of it still has enough pixels then."""
        content = self._images.read(index) if content is None else content
        try:
            image = Image.open(io.BytesIO(content))
            image.draft(image.mode, enough(part(*image.size), pixels))
            image.load()
            return image if image.mode == "RGB" else eight_bits(image).convert("RGB")  # convert() copies in any case
        except Exception as error:  # Pillow raises exceptions of many classes
            raise damaged_image(self._images, index) from error


def eight_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit gray levels as TensorFlow does. Pillow's convert() makes all but the darkest white."""
    if not image.mode.startswith("I;16"):
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def enough(part: Box, pixels: int) -> tuple[int, int]:
    """Return the least size of an image of which a part has enough pixels."""
    left, top, right, bottom = part
    return math.ceil(pixels / (right - left)), math.ceil(pixels / (bottom - top))


def fit_image(image: Image.Image, pixels: int, shorter_side: int) -> Tensor:
    """Scale the shorter side, and crop the center in the model's input size."""
    if image.size == (pixels, pixels) and pixels == shorter_side:
        return channels_first(image)
    return center(resize(channels_first(image), *scaled_size(*image.size, pixels, shorter_side)), pixels).contiguous()


def scaled_size(width: int, height: int, pixels: int, shorter_side: int) -> tuple[int, int]:
    """Return the height and width of an image whose shorter side is scaled."""
    scale = shorter_side / min(width, height)
    return max(pixels, round(height * scale)), max(pixels, round(width * scale))


def center(image: Tensor, pixels: int) -> Tensor:
    top, left = ((side - pixels) // 2 for side in image.shape[1:])
    return image[:, top : top + pixels, left : left + pixels]


def resize(image: Tensor, height: int, width: int) -> Tensor:
    """Do what Pillow's resize() does in less than half of the time."""
    return interpolate(image[None], (height, width), mode="bilinear", antialias=True)[0]


def channels_first(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def normalize(images: Tensor) -> Tensor:
    """Normalize a uint8 batch on the device, because copying it there as floats would move four times as much."""
    floats = images.float()  # changed in place, because each copy of a batch takes as long as the arithmetic
    return floats.sub_(_per_channel(MEAN, images.device)).div_(_per_channel(DEVIATION, images.device))


@cache
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Copy the values to the device once, because a copy for each batch would make the host wait for the GPU."""
    return torch.tensor(values, device=device).view(3, 1, 1) * 255
