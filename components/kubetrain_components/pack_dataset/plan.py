"""The plan of a pack: which images go into which shard.

A key begins with a hash of the image's path, and samples are packed by key: shuffled across classes, in a fixed order.
"""

import hashlib
import os
import re
import stat
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from kubetrain_trainer.data.image_folder import ImageFolder, is_folder, list_classes, list_images, no_images
from kubetrain_trainer.data.shard_index import ShardIndex
from kubetrain_trainer.errors import InvalidSetting, KubetrainError

SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]+)?) ?(?:([KMGT])(I)?)?B?", re.IGNORECASE)
UNSAFE_IN_KEYS = re.compile(rb"[^A-Za-z0-9_-]")
MAX_NAME_IN_KEY = 64  # with the hash and the extension, less than the 100 bytes for a name in a tar header
END_OF_TAR = bytes(2 * tarfile.BLOCKSIZE)


@dataclass(frozen=True, slots=True)
class Sample:
    path: str
    """<split>/<class>/<image>"""
    label: int
    size: int

    @property
    def split(self) -> str:
        return self.path.partition("/")[0]

    @property
    def key(self) -> str:
        """A unique ASCII name without a dot, made from the bytes of the path so that the locale does not matter."""
        path = os.fsencode(self.path)
        _, class_name, image = path.split(b"/")
        name = UNSAFE_IN_KEYS.sub(b"_", class_name + b"-" + image.rpartition(b".")[0])[:MAX_NAME_IN_KEY]
        return f"{hashlib.blake2b(path, digest_size=8).hexdigest()}-{name.decode()}"

    @property
    def extension(self) -> str:
        return self.path.rpartition(".")[2].lower()

    @property
    def packed_size(self) -> int:
        image = tarfile.BLOCKSIZE + self.size + len(padding(self.size))
        label = tarfile.BLOCKSIZE + tarfile.BLOCKSIZE
        return image + label


@dataclass(frozen=True)
class Shard:
    number: int
    samples: tuple[Sample, ...]

    @property
    def split(self) -> str:
        return self.samples[0].split

    @property
    def name(self) -> str:
        return f"{self.split}/{self.split}-{self.number:06d}.tar"

    @property
    def size(self) -> int:
        return sum(sample.packed_size for sample in self.samples) + len(END_OF_TAR)

    @property
    def index(self) -> ShardIndex:
        index, offset = ShardIndex(), tarfile.BLOCKSIZE
        for sample in self.samples:
            index.add(offset, sample.size, sample.label)
            offset += sample.packed_size
        return index


@dataclass(frozen=True, kw_only=True)
class PackPlan:
    data_dir: Path
    out: Path
    classes: tuple[str, ...]
    shard_size: int
    shards: tuple[Shard, ...]
    notes: tuple[str, ...]
    """Notes for users, such as how many other files are left out."""
    copies: Path | None = None
    """A folder with files that are packed instead of those of the same path."""

    def file_of(self, sample: Sample) -> Path:
        copy = self.copies / sample.path if self.copies else None
        return copy if copy and copy.exists() else self.data_dir / sample.path


def parse_size(text: str) -> int:
    """Return the bytes in a size such as 64MB, 1.5GB, 512MiB or a plain number.

    Raises:
        InvalidSetting: if it is not a size, or is 0.
    """
    match = SIZE.fullmatch(text.strip())
    if match:
        number, prefix, is_binary = match.groups()
        size = int(float(number) * (1024 if is_binary else 1000) ** " KMGT".index((prefix or " ").upper()))
        if size > 0:
            return size
    raise InvalidSetting(f"--shard-size must be a size such as 64MB, 1GB or a number of bytes, not '{text}'")


def _may_be_split(entry: Path) -> bool:
    return is_folder(entry) and entry.name != "lost+found"  # which file systems make


def plan_pack(data_dir: Path, out: Path, shard_size: int) -> PackPlan:
    """Plan the shards of all splits of an image folder.

    Raises:
        KubetrainError: if the folder is not laid out as <split>/<class>/<image>, a class or an image is empty, or the
            target exists.
    """
    if not data_dir.is_dir():
        raise KubetrainError(f"{data_dir} is not a directory: pass a folder with <split>/<class>/<image>")
    _check_target(out, data_dir)
    with read_errors_explained(data_dir):
        classes = list_classes(data_dir)
        splits = sorted(path.name for path in data_dir.iterdir() if _may_be_split(path))
        folders = {split: _images_of(data_dir, split) for split in splits}
        samples = [_samples_of(split, folder) for split, folder in folders.items()]
    return PackPlan(
        data_dir=data_dir,
        out=out,
        classes=classes,
        shard_size=shard_size,
        shards=tuple(shard for sample in samples for shard in plan_shards(sample, shard_size)),
        notes=tuple(note for folder in folders.values() for note in folder.notes),
    )


def with_copies(plan: PackPlan, copies: Path) -> PackPlan:
    """Plan the same pack with copies of some images, which have other sizes."""
    plan = replace(plan, copies=copies)
    samples = groupby((sample for shard in plan.shards for sample in shard.samples), key=lambda each: each.split)
    resized = [[replace(item, size=_size_of(plan.file_of(item))) for item in split] for _, split in samples]
    return replace(plan, shards=tuple(shard for item in resized for shard in plan_shards(item, plan.shard_size)))


def plan_shards(samples: Iterable[Sample], shard_size: int) -> Iterator[Shard]:
    """Yield shards of at most this size of a split's samples, in the order of keys; a larger sample gets its own."""
    number, packed, size = 0, list[Sample](), len(END_OF_TAR)
    for sample in sorted(samples, key=lambda each: each.key):
        if packed and size + sample.packed_size > shard_size:
            yield Shard(number, tuple(packed))
            number, packed, size = number + 1, [], len(END_OF_TAR)
        packed.append(sample)
        size += sample.packed_size
    if packed:
        yield Shard(number, tuple(packed))


def _check_target(out: Path, data_dir: Path) -> None:
    if os.path.lexists(out):
        raise KubetrainError(f"{out} already exists: choose another folder, or remove it first")
    if out.resolve().is_relative_to(data_dir.resolve()):
        raise KubetrainError(f"{out} is inside {data_dir} and would become a split: choose a folder outside")


def _images_of(data_dir: Path, split: str) -> ImageFolder:
    folder = list_images(data_dir, split)
    filled = {folder.classes[label] for label in folder.labels}
    if empty := [name for name in list_classes(data_dir, split) if name not in filled]:
        raise no_images(data_dir / split / empty[0])
    return folder


def _samples_of(split: str, folder: ImageFolder) -> list[Sample]:
    return [
        Sample(f"{split}/{folder.classes[label]}/{Path(path).name}", label, _size_of(Path(path)))
        for path, label in zip(folder.paths, folder.labels, strict=True)
    ]


def _size_of(image: Path) -> int:
    status = image.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        problem = "is empty" if stat.S_ISREG(status.st_mode) else "is not a file"
        raise KubetrainError(f"{image} {problem}: replace or remove it")
    return status.st_size


def padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


@contextmanager
def read_errors_explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KubetrainError(
            f"cannot read {error.filename or path} ({error.strerror}): replace it, remove it, or check your permissions"
        ) from error
