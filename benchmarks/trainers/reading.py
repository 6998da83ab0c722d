"""Compare reading images from a folder and from tar shards, in the random order of a training.

python benchmarks/trainers/reading.py [--images 2000 --directory DIR]
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from images import write_images

from kubetrain_components.pack_dataset.pack import write_pack
from kubetrain_components.pack_dataset.plan import plan_pack
from kubetrain_trainer.data import image_folder, tar_shards
from kubetrain_trainer.data.sample_order import EpochOrder

ROUNDS = 5
SHARD_BYTES = 16_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--directory", help="folder for the images, on the disk to measure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        write_images(Path(folder, "folder"), arguments.images)
        write_pack(plan_pack(Path(folder, "folder"), Path(folder, "shards"), SHARD_BYTES))
        print("| | images/s | CPU us/image | MB/s |\n| - | -: | -: | -: |")
        for cache in ("in the page cache", "not"):
            for name, read in ways(Path(folder)).items():
                print(f"| {name}, {cache} | {measured(read, Path(folder), arguments.images, is_cold=cache == 'not')} |")


def ways(folder: Path) -> dict[str, Callable[[], Iterator[bytes]]]:
    files = image_folder.list_images(folder / "folder", "train")
    shards = tar_shards.list_images(folder / "shards", "train")
    order = EpochOrder(len(files.paths), seed=0, epoch=0)[:]
    return {
        "files at random": lambda: map(files.read, order),
        "shards at random": lambda: map(shards.read, order),
        "shards in sequence": lambda: map(shards.read, range(len(order))),
    }


def measured(read: Callable[[], Iterator[bytes]], folder: Path, images: int, *, is_cold: bool) -> str:
    """Return the medians of several rounds, after one that does not count."""
    rates, costs, size = [], [], 0
    for _ in range(1 + ROUNDS):
        if is_cold:
            forget(folder)
        began, cpu = time.perf_counter(), time.process_time()
        size = sum(map(len, read()))
        rates.append(images / (time.perf_counter() - began))
        costs.append((time.process_time() - cpu) / images * 1e6)
    rate, cost = statistics.median(rates[1:]), statistics.median(costs[1:])
    return f"{rate:,.0f} | {cost:.0f} | {rate * size / images / 1e6:,.0f}"


def forget(folder: Path) -> None:
    """Evict these files from the kernel's page cache."""
    os.sync()
    for path in folder.rglob("*.*"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
