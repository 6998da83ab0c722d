"""A dataset of images in tar shards by the WebDataset convention, read where they lie: nothing is unpacked.

manifest.json            classes by label, and each split's shards; without it every *.tar, and classes are numbers
<split>/NAME.tar         KEY.jpg and KEY.cls, the number of its class, then those of the next key
<split>/NAME.index.json  where in it the images lie; without it the archive's headers are looked through at each start

An epoch's order is at random over all shards, as it is over a folder: only so can any process take any sample, and a
run resume anywhere with more or fewer processes. An image is then one read at a random place: what a plain file costs,
less its opening. From memory that is as fast as in sequence. From a disk it is not, since the kernel cannot read ahead
(benchmarks/README.md has figures): there, several loading processes help, and so does memory for the whole.
"""

import os
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tarfile import BLOCKSIZE
from typing import Any

from kubetrain_trainer.durable_files import read_json
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.image_folder import missing_split
from kubetrain_trainer.shard_index import ShardIndex, read_index
from kubetrain_trainer.tar_scan import scan_shard

SCHEMA = "kubetrain/shards/v1"
MANIFEST = "manifest.json"
LAYOUT = "shards must be <split>/*.tar"
LISTED_AT_ONCE = 16
"""Shards: on a network file system it is waiting that takes the time."""
MAX_OPEN = 512
"""Shards that a process keeps open: half as many files as it usually may."""


@dataclass(frozen=True, kw_only=True)
class TarShards:
    classes: tuple[str, ...]
    paths: tuple[str, ...]
    starts: "array[int]"
    """The first sample of each shard."""
    index: ShardIndex

    @property
    def labels(self) -> "array[int]":
        return self.index.labels

    def read(self, sample: int) -> bytes:
        path, size = self._path(sample), self.index.sizes[sample]
        content = _opened(path).read(size, self.index.offsets[sample])
        if len(content) < size:
            raise KubetrainError(f"{path} was cut short while it was in use: sync or pack it again")
        return content

    def name(self, sample: int) -> str:
        """For people: as the tar's header has it, of a long name the beginning."""
        path = self._path(sample)
        header = _opened(path).read(BLOCKSIZE, self.index.offsets[sample] - BLOCKSIZE)
        return f"{header[:100].partition(bytes(1))[0].decode(errors='replace')} in {path}"

    def _path(self, sample: int) -> str:
        return self.paths[bisect_right(self.starts, sample) - 1]


class OpenFile:
    """Closed when the last thread that reads it is done, be it forgotten meanwhile."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    def read(self, size: int, offset: int) -> bytes:
        return os.pread(self._descriptor, size, offset)


@lru_cache(maxsize=MAX_OPEN)
def _opened(path: str) -> OpenFile:
    """In each process its own, from when it first reads of it."""
    return OpenFile(os.open(path, os.O_RDONLY))


def list_classes(data_dir: Path, training_split: str = "train") -> tuple[str, ...]:
    """As the manifest has them, else numbers up to the largest label of the training split.

    Raises:
        KubetrainError: where there is nothing to train on.
    """
    manifest = _manifest(data_dir)
    if manifest:
        return tuple(manifest["classes"])
    return tuple(str(number) for number in range(max(_listed(data_dir, training_split).labels) + 1))


def list_images(data_dir: Path, split: str, training_split: str = "train") -> TarShards:
    """The images of a split, in an order that every process and both frameworks agree on.

    Raises:
        KubetrainError: where there are none, a shard is damaged, or an image is of a class that training does not know.
    """
    shards = replace(_listed(data_dir, split), classes=list_classes(data_dir, training_split))
    known = range(len(shards.classes))
    if min(shards.labels) not in known or max(shards.labels) not in known:
        wrong = next(sample for sample, label in enumerate(shards.labels) if label not in known)
        raise KubetrainError(
            f"{shards.name(wrong)} has label {shards.labels[wrong]}, but training knows {len(known)} classes, "
            "numbered from 0: correct the label, or remove the image"
        )
    return shards


@lru_cache(maxsize=8)
def _listed(data_dir: Path, split: str) -> TarShards:
    """Once in a process: to look through shards that have no index takes long."""
    paths = _shards(data_dir, split)
    starts, index = array("q"), ShardIndex()
    with ThreadPoolExecutor(LISTED_AT_ONCE) as threads:
        for part in threads.map(_index_of, paths):
            starts.append(len(index))
            index.extend(part)
    if not len(index):
        raise KubetrainError(
            f"{data_dir / split} has no samples in its shards: each must be KEY.jpg, or .png, and KEY.cls"
        )
    return TarShards(classes=(), paths=tuple(map(str, paths)), starts=starts, index=index)


def _shards(data_dir: Path, split: str) -> list[Path]:
    manifest, folder = _manifest(data_dir), data_dir / split
    if manifest:
        paths = [data_dir / file["name"] for file in manifest["files"] if file.get("split") == split]
    else:
        paths = sorted(folder.glob("*.tar"))
    if paths:
        return paths
    if not folder.is_dir():
        raise missing_split(data_dir, split, LAYOUT)
    if any(each.is_dir() for each in folder.iterdir()):
        raise KubetrainError(f"{folder} holds folders, not tar shards: for <class>/<image> set data=image_folder")
    raise KubetrainError(f"{folder} has no tar shards: {LAYOUT}")


def _manifest(data_dir: Path) -> Mapping[str, Any] | None:
    """What `kubetrain pack` wrote, if it did."""
    try:
        manifest = read_json(data_dir / MANIFEST)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise KubetrainError(f"{data_dir / MANIFEST} is damaged ({error}): sync or pack again") from error
    return manifest if isinstance(manifest, dict) and manifest.get("schema") == SCHEMA else None


def _index_of(shard: Path) -> ShardIndex:
    try:
        index = read_index(shard)
        return scan_shard(shard) if index is None else index
    except OSError as error:
        raise KubetrainError(
            f"cannot read {error.filename or shard} ({error.strerror}): sync or pack again, or check your rights"
        ) from error
