"""The dataset: names, sizes and bytes follow from an object's number, so server and checker agree."""

import hashlib
import os
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path

BUCKET = "benchmark"
PREFIX = "images"
SOURCE = f"s3://{BUCKET}/{PREFIX}"

BODY_SIZES = tuple(60_000 + 1_250 * number for number in range(64))  # about 100 KB, like photographs
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Dataset:
    """Objects in nested folders, sorted by key, with a few repeated bodies."""

    objects: int
    body_sizes: tuple[int, ...] = BODY_SIZES

    def key(self, number: int) -> str:
        """The key, relative to the prefix."""
        split = "train" if number < self.objects * 9 // 10 else "val"
        return f"{split}/class-{number // self._folder_objects:04}/{number:07}.jpg"

    def etag(self, number: int) -> str:
        """The MD5, except for large objects, which are multipart uploads."""
        etag = etags(self.body_sizes)[number % len(self.body_sizes)]
        return etag if self.body_sizes == BODY_SIZES else f"{etag}-16"

    def body_size(self, number: int) -> int:
        return self.body_sizes[number % len(self.body_sizes)]

    @staticmethod
    def number_of(key: str) -> int:
        return int(key[-len("0000000.jpg") : -len(".jpg")])

    @property
    def _folder_objects(self) -> int:
        return max(100, self.objects // 1000)

    @property
    def size(self) -> int:
        return sum(self.body_size(number) for number in range(self.objects))


@cache
def bodies(sizes: tuple[int, ...] = BODY_SIZES) -> tuple[bytes, ...]:
    return tuple(random.Random(size).randbytes(size) for size in sizes)


@cache
def etags(sizes: tuple[int, ...] = BODY_SIZES) -> tuple[str, ...]:
    return tuple(hashlib.md5(body, usedforsecurity=False).hexdigest() for body in bodies(sizes))


def write_files(dataset: Dataset, bucket: Path) -> None:
    for number in range(dataset.objects):
        path = bucket / PREFIX / dataset.key(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bodies()[number % len(BODY_SIZES)])


def write_shards(shards: int, shard_bytes: int, bucket: Path) -> None:
    (bucket / PREFIX).mkdir(parents=True)
    for number in range(shards):
        with (bucket / PREFIX / f"shard-{number:04}.tar").open("wb") as shard:
            for start in range(0, shard_bytes, CHUNK_BYTES):
                shard.write(os.urandom(min(CHUNK_BYTES, shard_bytes - start)))
