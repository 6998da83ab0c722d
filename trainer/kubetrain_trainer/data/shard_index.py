"""The positions of the images in a tar shard, stored by `kubetrain pack`, or else found by reading its headers."""

import json
import re
import tarfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import add
from pathlib import Path
from typing import Any, BinaryIO, Self

from kubetrain_trainer.data.image_folder import EXTENSIONS
from kubetrain_trainer.durable_files import read_json
from kubetrain_trainer.errors import KubetrainError

SCHEMA = "kubetrain/shard-index/v1"
LABEL = ".cls"
NAME = re.compile(r"((?:.*/)?[^./]+)(\.[^/]*)", re.DOTALL)
"""Key and extension by the WebDataset convention: mask.jpg has the extension .jpg, 1.mask.jpg has .mask.jpg."""
NUMBER = re.compile(rb"\s*([0-9]{1,9})\s*")
MAX_LABEL = 64


@dataclass(frozen=True)
class ShardIndex:
    """The samples of one or several shards, in arrays because there may be millions."""

    offsets: "array[int]" = field(default_factory=partial(array, "q"))
    sizes: "array[int]" = field(default_factory=partial(array, "q"))
    labels: "array[int]" = field(default_factory=partial(array, "i"))

    def __len__(self) -> int:
        return len(self.labels)

    def add(self, offset: int, size: int, label: int) -> None:
        self.offsets.append(offset)
        self.sizes.append(size)
        self.labels.append(label)

    def extend(self, other: Self) -> None:
        self.offsets.extend(other.offsets)
        self.sizes.extend(other.sizes)
        self.labels.extend(other.labels)

    def to_json(self, shard_size: int) -> bytes:
        """Return the index as JSON with the size of the shard, so that readers detect an index of another shard."""
        columns = {name: values.tolist() for name, values in vars(self).items()}
        described = {"schema": SCHEMA, "shard_size": shard_size, **columns}
        return json.dumps(described, separators=(",", ":"), sort_keys=True).encode() + b"\n"


def index_path(shard: Path) -> Path:
    return shard.with_suffix(".index.json")


def read_index(shard: Path, size: int | None = None) -> ShardIndex | None:
    """Return the index beside a shard, or None if it has none.

    Args:
        size: The size of the shard, if it is not there itself.

    Raises:
        KubetrainError: if the index is damaged or belongs to another shard.
    """
    path = index_path(shard)
    try:
        described = read_json(path)
        index = _from_columns(described)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise KubetrainError(f"{path} is damaged: sync or pack again") from error
    size = shard.stat().st_size if size is None else size
    if described.get("shard_size") != size or max(map(add, index.offsets, index.sizes), default=0) > size:
        raise KubetrainError(
            f"{shard} has {size} bytes and is not the shard that {path.name} describes: sync or pack again"
        )
    return index


def _from_columns(described: Any) -> ShardIndex:
    index = ShardIndex()
    for name, values in vars(index).items():
        values.fromlist(described[name])
    if described["schema"] != SCHEMA or not len(index.offsets) == len(index.sizes) == len(index.labels):
        raise ValueError("not an index")
    return index


@dataclass(frozen=True)
class Member:
    key: str
    extension: str
    offset: int
    size: int


def scan_shard(shard: Path) -> ShardIndex:
    """Return the positions and labels of the images in a tar file (ustar, GNU or pax).

    Raises:
        KubetrainError: if the archive is damaged or truncated, or a sample is not one image and one label.
    """
    index = ShardIndex()
    with shard.open("rb") as file:
        for key, group in groupby(_members(shard, file), key=lambda member: member.key):
            members = list(group)
            images = [member for member in members if member.extension in EXTENSIONS]
            labels = [member for member in members if member.extension == LABEL]
            if len(images) != 1 or len(labels) != 1:
                raise KubetrainError(
                    f"{shard} has {len(images)} images and {len(labels)} {LABEL} files in a row with the key {key!r}: "
                    "a sample is one image and one class number, whose names are equal up to the first dot"
                )
            index.add(images[0].offset, images[0].size, _label(shard, file, labels[0]))
    return index


def _members(shard: Path, file: BinaryIO) -> Iterator[Member]:
    """Yield the members whose extension is that of an image or a label."""
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            while (entry := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # tarfile would keep them all
                name = NAME.fullmatch(entry.name)
                if name and entry.isreg() and not entry.issparse() and name[2].lower().endswith((*EXTENSIONS, LABEL)):
                    yield Member(name[1], name[2].lower(), entry.offset_data, entry.size)
            file.seek(archive.offset)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # tarfile treats a damaged header as the end
                raise tarfile.ReadError(f"no header at byte {archive.offset}")
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise KubetrainError(f"{shard} is damaged, truncated or compressed ({error}): create it again") from error


def _label(shard: Path, file: BinaryIO, member: Member) -> int:
    file.seek(member.offset)
    content = file.read(min(member.size, MAX_LABEL))
    number = NUMBER.fullmatch(content)
    if number is None:
        raise KubetrainError(
            f"{shard} has {content!r} in {member.key + LABEL!r}: it must be a class number, such as 0 or 17"
        )
    return int(number[1])
