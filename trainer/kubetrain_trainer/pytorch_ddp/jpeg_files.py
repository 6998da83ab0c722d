"""JPEG files that the device decodes. Loading processes only read their headers, and send the bytes."""

import contextlib
import io
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from kubetrain_trainer.augmentation import Box

END_OF_IMAGE = b"\xff\xd9"
MAX_BYTES = 2**18
"""The size of the largest file that is sent: 256 in each of 16 batches ahead fill the 1 GiB of a default /dev/shm."""
MAX_PIXELS = 16_000_000
"""The most pixels of such an image, which the device holds at full scale."""
CHUNK_PIXELS, CHUNK_NUMBERS = 64_000_000, 128_000_000
"""The most pixels that are decoded at once, in 0.2 GB, and the most numbers for each color that resizing them takes."""
EDGE = 64
LUMA, CHROMA = 1, [(2, 1, 1), (3, 1, 1)]
"""The numbers of the channels, which tell these colors from RGB, and how many samples a block of the other two has."""


class JpegFile(NamedTuple):
    """A file, and what to make of the image in it."""

    content: bytes
    pixels: int
    """All that the image has."""
    part: tuple[int, int, int, int]
    """Left, top, right and bottom of the part to take."""
    scaled: tuple[int, int]
    """The height and width to scale it to."""
    side: int
    """The height and width of the center that the model sees."""
    is_flipped: bool
    erased: Box


class UndecodedFiles(Exception):
    """The device cannot decode some of the files."""


def size_to_decode(content: bytes) -> tuple[int, int] | None:
    """Return the width and height of an image that the device decodes as Pillow does, or None.

    Others are decoded in the loading processes: progressive files, because only baseline files are decoded without the
    training process's CPU, and files without their end, because Pillow knows whether the image lacks anything.
    """
    if len(content) > MAX_BYTES or not content.endswith(END_OF_IMAGE):
        return None
    with contextlib.suppress(Exception):  # Pillow raises exceptions of many classes, again when it decodes the image
        image: Any = Image.open(io.BytesIO(content))
        if image.format == "JPEG" and _is_plain(image) and image.width * image.height <= MAX_PIXELS:
            return image.width, image.height
    return None


def _is_plain(image: Any) -> bool:
    has_usual_colors = image.mode == "RGB" and image.info.get("adobe_transform") != 0
    is_color = has_usual_colors and image.layer[0][0] == LUMA and [each[:3] for each in image.layer[1:]] == CHROMA
    return (is_color or image.mode == "L") and "progressive" not in image.info


def packed_length(length: int) -> int:
    """Return a height or width that all parts have together: tensor cores need even ones, and memory of the same size
    can be used again."""
    return -(-length // EDGE) * EDGE


def _numbers(height: int, width: int, side: int) -> int:
    """Return how many numbers a part and its weights take."""
    high, wide = packed_length(height), packed_length(width)
    return high * wide + side * (high + wide)


def in_chunks(files: Sequence[JpegFile]) -> Iterator[slice]:
    """Yield parts of the files whose images fit into the device's memory together."""
    first, pixels, height, width = 0, 0, 0, 0
    for number, file in enumerate(files):
        left, top, right, bottom = file.part
        pixels, height, width = pixels + file.pixels, max(height, bottom - top), max(width, right - left)
        numbers = (number + 1 - first) * _numbers(height, width, file.side)
        if number > first and (pixels > CHUNK_PIXELS or numbers > CHUNK_NUMBERS):
            yield slice(first, number)
            first, pixels, height, width = number, file.pixels, bottom - top, right - left
    yield slice(first, len(files))


def decode(contents: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return the images, each of shape (3, height, width).

    Raises:
        UndecodedFiles: if one of them cannot be decoded.
    """
    from torchvision.io import ImageReadMode, decode_jpeg  # takes seconds, and only this function needs it

    if device.type == "cuda":
        # The decoder writes at once into memory that earlier work of this stream may still read.
        torch.cuda.current_stream(device).synchronize()
    try:
        images: list[Tensor] = decode_jpeg(list(contents), ImageReadMode.RGB, device)
    except RuntimeError as error:
        raise UndecodedFiles(str(error).partition("\n")[0]) from error
    return images
