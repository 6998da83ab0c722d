"""Pictures as JPEG files of several kinds, and how a training gets them."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.process_role import ProcessRole
from kubetrain_trainer.pytorch_ddp.loading import Loader
from kubetrain_trainer.pytorch_ddp.task import build_task

LEVEL = 1 / 255 / 0.226
"""A level of a color, as the model sees it."""


def write_mixture(folder: Path) -> None:
    """Write images of which a device decodes about half, in three classes."""
    contents = [encoded(picture(number)) for number in range(24)]
    contents[1] = encoded(picture(1).convert("L"))
    contents[2::4] = [encoded(picture(number), progressive=True) for number in range(2, 24, 4)]
    contents[3::4] = [encoded(picture(number), format="PNG") for number in range(3, 24, 4)]
    write(folder, contents)


def picture(number: int) -> Image.Image:
    generator = np.random.default_rng(number)
    width, height = (int(side) for side in generator.integers(100, 300, 2))
    coarse = Image.fromarray(generator.integers(0, 255, (5, 5, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, **{"format": "JPEG", "quality": 95, **options})
    return buffer.getvalue()


def without_tables(content: bytes) -> bytes:
    """Return a JPEG file with a good header and a good end, which no decoder reads."""
    counts = content.index(b"\xff\xc4") + 5
    return content[:counts] + bytes([255]) * 16 + content[counts + 16 :]


def write(folder: Path, contents: list[bytes]) -> None:
    for split in ("train", "val", "test"):
        for number, content in enumerate(contents):
            path = folder / split / "abc"[number * 3 // len(contents)] / f"{number:02}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def loaded(folder: Path, decoder: str, device: str = "cpu", **settings: Any) -> tuple[Tensor, Tensor]:
    """Return the images and targets of an epoch, as the training gets them."""
    changes = {"image_size": 160, "batch_size": 8, "seed": 7, "loader_workers": 0, **settings}
    config = TrainConfig.from_dict({**changes, "jpeg_decoder": decoder})
    task = build_task(config, folder)
    loader = Loader(task.training_data(), config, ProcessRole(), torch.device(device), task.collate)  # type: ignore[misc]
    batches = list(loader.load([(3, index) for index in range(first, first + 8)] for first in range(0, loader.size, 8)))
    return torch.cat([each.inputs.cpu() for each in batches]), torch.cat([each.targets.cpu() for each in batches])
