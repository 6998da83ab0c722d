"""Images to predict, in place of those of a dataset: paths, the bytes of files, or images in memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from kubetrain_trainer.errors import KubetrainError

PIXELS = ("uint8", "uint16")


@dataclass(frozen=True)
class GivenImages:
    files: Sequence[Path | bytes]

    @property
    def labels(self) -> Sequence[int]:
        return [0] * len(self.files)

    @property
    def paths(self) -> Sequence[str]:
        return [""] * len(self.files)

    def read(self, sample: int) -> bytes:
        file = self.files[sample]
        return file if isinstance(file, bytes) else file.read_bytes()

    def name(self, sample: int) -> str:
        file = self.files[sample]
        return f"image {sample}" if isinstance(file, bytes) else str(file)


def images_among(inputs: Any) -> Sequence[Any] | None:
    """Return the images that predict() gets, or None for a batch that is ready for the network."""
    if _is_image(inputs):
        return [inputs]
    return inputs if isinstance(inputs, list | tuple) else None


def _is_image(value: Any) -> bool:
    is_pillows = hasattr(value, "convert")
    is_array = _has_pixels(value) and value.ndim in (2, 3)
    return isinstance(value, str | PathLike | bytes) or is_pillows or is_array


def given_images(images: Sequence[Any], encode: Callable[[Any], bytes]) -> GivenImages:
    """
    Args:
        encode: Returns the bytes of a PNG file for an image in memory.

    Raises:
        KubetrainError: if a file does not exist.
    """
    return GivenImages([_file(image, encode) for image in images])


def _file(image: Any, encode: Callable[[Any], bytes]) -> Path | bytes:
    if not isinstance(image, str | PathLike):
        return image if isinstance(image, bytes) else encode(image)
    if not Path(image).is_file():
        raise KubetrainError(f"the image {image} does not exist: check the path")
    return Path(image)


def check_pixels(image: Any, array: Any) -> None:
    """
    Raises:
        KubetrainError: if the array of this image has other numbers than pixels.
    """
    if not _has_pixels(array):
        raise refused_image(image)


def _has_pixels(array: Any) -> bool:
    return str(getattr(array, "dtype", "")) in PIXELS


def refused_image(image: Any) -> KubetrainError:
    kind = f"{getattr(image, 'dtype', type(image).__name__)} {getattr(image, 'shape', '')}".strip()
    return KubetrainError(
        "an image must be a path, the bytes of a file, a Pillow image or an array (height, width, 3) of uint8, not "
        f"{kind}"
    )
