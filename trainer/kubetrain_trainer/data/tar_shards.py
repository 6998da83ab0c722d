"""A dataset of images in tar shards in the WebDataset convention, read in place without unpacking.

manifest.json            classes by label, and each split's shards; without it, every *.tar, and numbers as classes
<split>/NAME.tar         KEY.jpg and KEY.cls (the class number), then those of the next key
<split>/NAME.index.json  positions of the images; without it, the archive's headers are scanned at each start

Epochs are shuffled over all shards, as over a folder, because any process must be able to use any sample for a run to
resume anywhere with more or fewer processes. Each image is therefore one read at a random position, which costs as much
as reading a plain file without opening it. From memory, that is as fast as sequential reads. From a disk it is slower,
because the kernel cannot read ahead (benchmarks/README.md has numbers): several loading processes help there, or enough
memory for the whole dataset.

Shards that stayed in the store are read from the cache of the pod, in an order that is kind to it (shard_groups.py).
"""

import os
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tarfile import BLOCKSIZE
from typing import Any

from kubetrain_trainer.data.image_folder import TRAINING_SPLIT, in_dataset, missing_split
from kubetrain_trainer.data.shard_cache import EVALUATION, TRAINING, ShardCache, cache_folder, read_stored_shards
from kubetrain_trainer.data.shard_groups import CachedShards, ShardGroups
from kubetrain_trainer.data.shard_index import ShardIndex, read_index, scan_shard
from kubetrain_trainer.durable_files import read_json
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.model_folder import is_inside
from kubetrain_trainer.settings.config import TrainConfig

SCHEMA = "kubetrain/shards/v1"
MANIFEST = "manifest.json"
LAYOUT = "shards must be <split>/*.tar"
LAYOUT_PARTS = 2
LISTING_THREADS = 16
"""Shards are listed in parallel, because on a network file system most of the time is latency."""
MAX_OPEN = 512
"""Shards that a process keeps open: half the usual limit of open files."""


@dataclass(frozen=True, kw_only=True)
class TarShards:
    classes: tuple[str, ...]
    paths: tuple[str, ...]
    starts: "array[int]"
    """The index of the first sample of each shard."""
    index: ShardIndex
    cached: CachedShards | None = None
    """The cache that has the shards, if they are not files of the dataset version."""

    @property
    def labels(self) -> "array[int]":
        return self.index.labels

    def read(self, sample: int) -> bytes:
        size = self.index.sizes[sample]
        content = self._opened(sample).read(size, self.index.offsets[sample])
        if len(content) < size:
            raise KubetrainError(f"{self._path(sample)} was truncated while in use: sync or pack it again")
        return content

    def name(self, sample: int) -> str:
        """Return a readable name of a sample from the tar's header, in which long names are cut off."""
        header = self._opened(sample).read(BLOCKSIZE, self.index.offsets[sample] - BLOCKSIZE)
        name = header[:100].partition(bytes(1))[0].decode(errors="replace")
        return f"{name} in {in_dataset(self._path(sample), LAYOUT_PARTS)}"

    def files_checksum(self) -> int:
        """Return a checksum of the names of the shards, and of what the index says of each image."""
        found = zlib.crc32(repr([Path(path).name for path in self.paths]).encode(errors="surrogateescape"))
        for array_ in (self.starts, self.index.offsets, self.index.sizes, self.labels):
            found = zlib.crc32(array_, found)
        return found

    def _path(self, sample: int) -> str:
        return self.paths[self._shard_of(sample)]

    def _shard_of(self, sample: int) -> int:
        return bisect_right(self.starts, sample) - 1

    def _opened(self, sample: int) -> "OpenFile":
        """Return the file of a shard, which in a cache is not kept open, because it would keep its space."""
        if self.cached:
            return OpenFile(self.cached.open(self._shard_of(sample)))
        return _opened(self._path(sample))


class OpenFile:
    """A file that stays open until the last thread has read it, even if the cache drops it before."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    def read(self, size: int, offset: int) -> bytes:
        return os.pread(self._descriptor, size, offset)


@lru_cache(maxsize=MAX_OPEN)
def _opened(path: str) -> OpenFile:
    """Open a shard on its first read in this process."""
    return OpenFile(os.open(path, os.O_RDONLY))


def list_classes(data_dir: Path) -> tuple[str, ...]:
    """Return the manifest's classes, or else the numbers up to the largest label of the training split.

    Raises:
        KubetrainError: if the training split has no samples.
    """
    manifest = _manifest(data_dir)
    if manifest:
        return tuple(manifest["classes"])
    return tuple(str(number) for number in range(max(_listed(data_dir, TRAINING_SPLIT).labels) + 1))


def list_images(data_dir: Path, split: str) -> TarShards:
    """Return the images of a split in an order that is the same in every process and both frameworks.

    Raises:
        KubetrainError: if there are none, a shard is damaged, or a label is not one of the classes.
    """
    shards = replace(
        _listed(data_dir, split),
        classes=list_classes(data_dir),
        cached=_cached(data_dir, split, TRAINING if split == TRAINING_SPLIT else EVALUATION),
    )
    known = range(len(shards.classes))
    if min(shards.labels) not in known or max(shards.labels) not in known:
        wrong = next(sample for sample, label in enumerate(shards.labels) if label not in known)
        raise KubetrainError(
            f"{shards.name(wrong)} has label {shards.labels[wrong]}, but there are {len(known)} classes, "
            "numbered from 0: correct the label, or remove the image, where the dataset comes from"
        )
    return shards


def groups_of(images: Any, config: TrainConfig) -> ShardGroups | None:
    """Return the groups in which these images are read, if it is from a cache."""
    cached = getattr(images, "cached", None)
    return ShardGroups.of(cached, config) if cached else None


@lru_cache(maxsize=8)
def _listed(data_dir: Path, split: str) -> TarShards:
    """List the samples once per process, because scanning shards without an index takes long."""
    paths, stored = _shards(data_dir, split), read_stored_shards(data_dir)
    sizes = [stored[_key(data_dir, path)].size if stored else None for path in paths]
    starts, index = array("q"), ShardIndex()
    with ThreadPoolExecutor(LISTING_THREADS) as threads:
        for part in threads.map(_index_of, paths, sizes):
            starts.append(len(index))
            index.extend(part)
    if not len(index):
        raise KubetrainError(
            f"{data_dir / split} has no samples in its shards: each must be KEY.jpg, or .png, and KEY.cls"
        )
    return TarShards(classes=(), paths=tuple(map(str, paths)), starts=starts, index=index)


def _cached(data_dir: Path, split: str, part: str) -> CachedShards | None:
    """Return how to read shards that stayed in the store, if they did."""
    if not (stored := read_stored_shards(data_dir)):
        return None
    listed = _listed(data_dir, split)
    return CachedShards(
        cache=ShardCache(cache_folder(), part),
        shards=tuple(stored[_key(data_dir, Path(path))] for path in listed.paths),
        starts=array("q", [*listed.starts, len(listed.index)]),
    )


def _key(data_dir: Path, shard: Path) -> str:
    return shard.relative_to(data_dir).as_posix()


def _shards(data_dir: Path, split: str) -> list[Path]:
    manifest, folder = _manifest(data_dir), data_dir / split
    if manifest:
        names = [file["name"] for file in manifest["files"] if file.get("split") == split]
        if outside := next((name for name in names if not is_inside(name)), None):
            raise KubetrainError(f"the manifest of {data_dir} names '{outside}', which is outside of it: sync it again")
        paths = [data_dir / name for name in names]
    else:
        paths = sorted(folder.glob("*.tar"))
    if paths:
        return paths
    if not folder.is_dir():
        raise missing_split(data_dir, split, LAYOUT)
    if any(member.is_dir() for member in folder.iterdir()):
        raise KubetrainError(
            f"{folder} holds folders, not tar shards: for <class>/<image> set data.format=image_folder"
        )
    raise KubetrainError(f"{folder} has no tar shards: {LAYOUT}")


def _manifest(data_dir: Path) -> Mapping[str, Any] | None:
    """Return the manifest if `kubetrain pack` wrote one."""
    try:
        manifest = read_json(data_dir / MANIFEST)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise KubetrainError(f"{data_dir / MANIFEST} is damaged ({error}): sync or pack again") from error
    return manifest if isinstance(manifest, dict) and manifest.get("schema") == SCHEMA else None


def _index_of(shard: Path, size: int | None) -> ShardIndex:
    try:
        index = read_index(shard, size)
        return scan_shard(shard) if index is None else index
    except OSError as error:
        raise KubetrainError(
            f"cannot read {error.filename or shard} ({error.strerror}): sync or pack again, or check your permissions"
        ) from error
