"""Compare how many training images per second one CPU decodes and changes, with torchvision's usual pipelines.

python benchmarks/trainers/augmenting.py [--images 200 --rounds 5]
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from images import write_images
from launches import output_of
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from kubetrain_components.pack_dataset.pack import write_pack
from kubetrain_components.pack_dataset.plan import PackPlan, plan_pack, with_copies
from kubetrain_components.pack_dataset.smaller_images import copy_images
from kubetrain_trainer.output.image_input import DEVIATION, MEAN
from kubetrain_trainer.processes.resources import keep_freed_memory
from kubetrain_trainer.pytorch_ddp.images.augmented_images import mixed_batch
from kubetrain_trainer.pytorch_ddp.loading import SeededSamples
from kubetrain_trainer.pytorch_ddp.task import image_data
from kubetrain_trainer.settings.config import TrainConfig

SIZES = ((500, 375), (1600, 1200), (4032, 3024))
RECIPES = ("standard", "strong")
SHORTER_SIDE = 512
SHARD_SIZE = 128_000_000
BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # TensorFlow's threads would compete for shared caches
    keep_freed_memory()  # for the peers too
    print("| | " + " | ".join(f"{width} x {height}" for width, height in SIZES) + " |")
    print("| --- |" + " ---: |" * len(SIZES))
    rates = [measured_at(size, arguments) for size in SIZES]
    for name in rates[0]:
        print(f"| {name} | " + " | ".join(described(each, name) for each in rates) + " |")


def measured_at(size: tuple[int, int], arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Return the rates of each way to load images, which take turns."""
    count = max(BATCH, arguments.images * SIZES[0][0] // size[0])
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder, "images")
        write_images(images, count, size=size)
        ways = ways_to_load(images)
        rates: dict[str, list[float]] = defaultdict(list)
        for number in range(arguments.rounds + 1):
            for name, load in ways.items():
                began = time.process_time()
                for first in range(0, count, BATCH):
                    load(range(first, min(first + BATCH, count)))
                rates[name].append(count / (time.process_time() - began))
            for recipe, rate in rates_of_tensorflow(images).items() if number else ():
                rates[f"kubetrain, TensorFlow, recipe={recipe}"].append(rate)
    return {name: each[-arguments.rounds :] for name, each in rates.items()}


def rates_of_tensorflow(folder: Path) -> dict[str, float]:
    program = Path(__file__).with_name("augmenting_tensorflow.py")
    found: dict[str, float] = json.loads(output_of([sys.executable, program, folder, *RECIPES]).splitlines()[-1])
    return found


def described(rates: dict[str, list[float]], name: str) -> str:
    ratios = [rate / peer for rate, peer in zip(rates[name], rates["torchvision, Pillow"], strict=True)]
    return f"{statistics.median(rates[name]):,.0f} ({statistics.median(ratios):.2f} times)"


def ways_to_load(folder: Path) -> dict[str, Callable[[range], Any]]:
    return {
        "torchvision, Pillow": partial(peer_batch, peer_of_pillow(folder)),
        "torchvision, tensors": partial(peer_batch, peer_of_tensors(folder)),
        **{f"kubetrain, recipe={name}": partial(our_batch, *ours(folder, name)) for name in RECIPES},
        "recipe=standard, normalized by a GPU": partial(our_batch, *ours(folder, "standard"), normalizes=False),
        f"recipe=standard, packed with --shorter-side {SHORTER_SIDE}": partial(our_batch, *ours_packed(folder)),
    }


def peer_of_pillow(folder: Path) -> ImageFolder:
    ends = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)]
    return ImageFolder(
        str(folder / "train"), v2.Compose([v2.RandomResizedCrop(224, (0.25, 1)), v2.RandomHorizontalFlip(), *ends])
    )


def peer_of_tensors(folder: Path) -> ImageFolder:
    ends = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)]
    changes = v2.Compose([v2.RandomResizedCrop(224, (0.25, 1), antialias=True), v2.RandomHorizontalFlip(), *ends])
    return ImageFolder(str(folder / "train"), changes, loader=lambda path: decode_image(path, ImageReadMode.RGB))


def peer_batch(samples: ImageFolder, indices: range) -> Any:
    return torch.utils.data.default_collate([samples[index] for index in indices])


def ours_packed(folder: Path) -> tuple[Any, Any]:
    packed = folder.with_name("packed")
    write_pack(plan_pack(folder, packed, SHARD_SIZE), prepare=made_smaller)
    return ours(packed, "standard", data="tar_shards")


def made_smaller(plan: PackPlan, copies: Path) -> PackPlan:
    for _ in copy_images(plan, copies, SHORTER_SIDE):
        pass
    return with_copies(plan, copies)


def ours(folder: Path, recipe: str, data: str = "image_folder") -> tuple[Any, Any]:
    config = TrainConfig(recipe=recipe, image_size=224, data=data)
    data = image_data(config, folder)
    images = data.training()
    return images, (SeededSamples(images, 0), partial(mixed_batch, classes=len(data.classes)))


def our_batch(images: Any, loading: Any, indices: range, *, normalizes: bool = True) -> Any:
    samples, collate = loading
    pixels, targets = collate([samples[0, index] for index in indices])
    return images.prepare(pixels) if normalizes else pixels, targets


if __name__ == "__main__":
    main()
