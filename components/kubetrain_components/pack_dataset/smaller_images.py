"""Smaller copies of large images, because decoding a photograph of many megapixels takes longer than training on it."""

import io
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from functools import partial
from pathlib import Path

from PIL import Image
from PIL.ExifTags import Base

from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_components.pack_dataset.plan import PackPlan, Sample, read_errors_explained
from kubetrain_trainer.processes.resources import usable_cpus

JPEG_QUALITY = 95
"""High, because the losses of this compression add to those of the first one."""
UNUSUAL_MODES = ("I", "F")
"""The beginnings of modes with more than 8 bits, of which each framework makes 8 bits in its own way."""


class Copied(Enum):
    SMALLER = auto()
    UNCHANGED = auto()
    UNDECODED = auto()
    """Unchanged, because it is damaged. The trainer names it, or leaves it out if it may."""


def copy_images(plan: PackPlan, folder: Path, shorter_side: int) -> Generator[tuple[Sample, Copied], None, None]:
    """Put a smaller copy of each image whose shorter side is longer into the folder; close it to stop.

    Raises:
        KubetrainError: if an image cannot be read.
    """
    copy = partial(_copy, plan.data_dir, folder, shorter_side)
    threads = ThreadPoolExecutor(usable_cpus())
    try:
        for shard in plan.shards:  # one at a time, because samples that wait take memory
            # An interrupt of what has just taken a lock that the threads need would let them wait forever.
            with interrupts_deferred():
                copies = threads.map(copy, shard.samples)
            for sample in shard.samples:
                with interrupts_deferred():
                    copied = next(copies)
                yield sample, copied
    finally:
        threads.shutdown(cancel_futures=True)


def _copy(data_dir: Path, folder: Path, shorter_side: int, sample: Sample) -> Copied:
    with read_errors_explained(data_dir / sample.path):
        content = (data_dir / sample.path).read_bytes()
    try:
        smaller = smaller_file(content, shorter_side)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - Pillow raises exceptions of many classes
        return Copied.UNDECODED
    if not smaller:
        return Copied.UNCHANGED
    target = folder / sample.path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(smaller)
    return Copied.SMALLER


def smaller_file(content: bytes, shorter_side: int) -> bytes | None:
    """Return a file of the image at a smaller size, or None if the image is small enough."""
    with Image.open(io.BytesIO(content)) as image:
        if min(image.size) <= shorter_side or image.mode.startswith(UNUSUAL_MODES):
            return None
        lossless = image.format in ("PNG", "BMP")
        return _encoded(_resized(image, shorter_side), image.format if lossless else "JPEG", image.getexif())


def _resized(image: Image.Image, shorter_side: int) -> Image.Image:
    width, height = (round(item * shorter_side / min(image.size)) for item in image.size)
    image.draft(image.mode, (width, height))
    plain = image if image.mode in ("RGB", "L") else image.convert("RGB")
    return plain.resize((width, height), Image.Resampling.LANCZOS)


def _encoded(image: Image.Image, kind: str | None, exif: Image.Exif) -> bytes:
    """Encode the image without the original's metadata, except which side is up."""
    kept = Image.Exif()
    if Base.Orientation in exif:
        kept[Base.Orientation] = exif[Base.Orientation]
    file = io.BytesIO()
    image.info.clear()  # comments, profiles and the like
    image.save(file, kind, quality=JPEG_QUALITY, exif=kept)
    return file.getvalue()
