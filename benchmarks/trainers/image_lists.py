"""Measure what a list of images costs each loading process: memory of its own, and seconds until the first batch.

.venv/bin/python benchmarks/trainers/image_lists.py [--images 1280000 --processes 2]
"""

import argparse
import tempfile
import time
from array import array
from pathlib import Path

import psutil
import torch
from PIL import Image

from kubetrain_trainer.data.image_folder import ImageFolder, PackedNames
from kubetrain_trainer.data.sample_order import keys_of
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.pytorch_ddp.images.decoded_images import StoredImages
from kubetrain_trainer.pytorch_ddp.loading import Loader
from kubetrain_trainer.settings.config import TrainConfig

CLASSES = 1000
BATCHES = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1_280_000)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        images = listed(Path(folder), arguments.images)
        config = TrainConfig(image_size=32, loader_workers=arguments.processes)
        loader = Loader(StoredImages(images, config), config, ProcessRole(), torch.device("cpu"))
        began = time.perf_counter()
        batches = loader.load([keys_of([0])] * BATCHES)
        next(batches)
        seconds = time.perf_counter() - began
        own = [process.memory_full_info().uss / 1e6 for process in psutil.Process().children(recursive=True)]
        print("| images | first batch | most memory of a loading process's own |\n| -: | -: | -: |")
        print(f"| {arguments.images:,} | {seconds:.1f} s | {max(own):.0f} MB |")


def listed(folder: Path, count: int) -> ImageFolder:
    """List images, of which only the first exists."""
    names = PackedNames.of(f"{folder}/n{n % CLASSES:08}_{n:08}.JPEG" for n in range(count))
    Image.new("RGB", (32, 32)).save(names[0])
    classes = tuple(map(str, range(CLASSES)))
    return ImageFolder(classes=classes, paths=names, labels=array("i", (n % CLASSES for n in range(count))))


if __name__ == "__main__":
    main()
