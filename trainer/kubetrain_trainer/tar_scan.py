"""Find the samples of a tar shard without an index by reading the archive's headers."""

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
"""Key and extension by the WebDataset convention: mask.jpg has the extension .jpg, 1.mask.jpg has .mask.jpg."""
NUMBER = re.compile(rb"\s*([0-9]{1,9})\s*")
MAX_LABEL = 64


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
