"""Find the samples of a tar shard that has no index, by the archive's headers."""

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.image_folder import EXTENSIONS
from kubetrain_trainer.shard_index import ShardIndex

LABEL = ".cls"
NAME = re.compile(r"((?:.*/)?[^./]+)(\.[^/]*)", re.DOTALL)
"""Key and extension, by the convention: of mask.jpg the extension is .jpg, of 1.mask.jpg it is .mask.jpg."""
NUMBER = re.compile(rb"\s*([0-9]{1,9})\s*")
MAX_LABEL = 64


@dataclass(frozen=True)
class Member:
    key: str
    extension: str
    offset: int
    size: int


def scan_shard(shard: Path) -> ShardIndex:
    """Where in a tar of any kind (ustar, GNU, pax) the images lie, and their labels.

    Raises:
        KubetrainError: where the archive is damaged or ends early, or a sample is not one image and one label.
    """
    index = ShardIndex()
    with shard.open("rb") as file:
        for key, group in groupby(_members(shard, file), key=lambda member: member.key):
            members = list(group)
            images = [member for member in members if member.extension in EXTENSIONS]
            labels = [member for member in members if member.extension == LABEL]
            if len(images) != 1 or len(labels) != 1:
                raise KubetrainError(
                    f"{shard} has {len(images)} images and {len(labels)} {LABEL} files in a row of the key {key!r}: "
                    "a sample is one image and the number of its class, their names alike up to the first dot"
                )
            index.add(images[0].offset, images[0].size, _label(shard, file, labels[0]))
    return index


def _members(shard: Path, file: BinaryIO) -> Iterator[Member]:
    """Those that are images or labels, by the end of their names."""
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            while (entry := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # tarfile would keep them all
                name = NAME.fullmatch(entry.name)
                if name and entry.isreg() and not entry.issparse() and name[2].lower().endswith((*EXTENSIONS, LABEL)):
                    yield Member(name[1], name[2].lower(), entry.offset_data, entry.size)
            file.seek(archive.offset)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # tarfile takes a damaged header for the end
                raise tarfile.ReadError(f"no header at byte {archive.offset}")
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise KubetrainError(f"{shard} is damaged, cut short or no plain tar ({error}): make it anew") from error


def _label(shard: Path, file: BinaryIO, member: Member) -> int:
    file.seek(member.offset)
    content = file.read(min(member.size, MAX_LABEL))
    number = NUMBER.fullmatch(content)
    if number is None:
        raise KubetrainError(
            f"{shard} has {content!r} in {member.key + LABEL!r}: it must be the number of a class, as 0 or 17"
        )
    return int(number[1])
