"""Pack an image folder into WebDataset-style tar shards, with the same bytes on every machine.

OUT/manifest.json                       class names by label; split, sample count, size and hash of each shard
OUT/<split>/<split>-000000.tar          for each key, <key>.jpg and <key>.cls, which holds the label
OUT/<split>/<split>-000000.index.json   offsets of the images in the shard
.OUT.partial/                           being written, or left behind by a killed process

A key begins with a hash of the image's path, and samples are packed by key: shuffled across classes, in a fixed order.
"""

import fcntl
import hashlib
import os
import re
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_trainer.durable_files import CHUNK_BYTES, flush_directory, write_atomically, write_json
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.image_folder import ImageFolder, list_classes, list_images, no_images
from kubetrain_trainer.shard_index import ShardIndex, index_path
from kubetrain_trainer.tar_shards import MANIFEST, SCHEMA

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
        image = tarfile.BLOCKSIZE + self.size + len(_padding(self.size))
        label = tarfile.BLOCKSIZE + tarfile.BLOCKSIZE
        return image + label


@dataclass(frozen=True)
class Shard:
    split: str
    number: int
    samples: tuple[Sample, ...]

    @property
    def name(self) -> str:
        return f"{self.split}/{self.split}-{self.number:06d}.tar"

    @property
    def size(self) -> int:
        return sum(each.packed_size for each in self.samples) + len(END_OF_TAR)

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
    shards: tuple[Shard, ...]
    notes: tuple[str, ...]
    """Notes for users, such as how many other files are left out."""


OnSample = Callable[[Sample], None]


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


def plan_pack(data_dir: Path, out: Path, shard_size: int) -> PackPlan:
    """Plan the shards of all splits of an image folder.

    Raises:
        KubetrainError: if the folder is not laid out as <split>/<class>/<image>, a class or an image is empty, or the
            target exists.
    """
    if not data_dir.is_dir():
        raise KubetrainError(f"{data_dir} is not a directory: pass a folder with <split>/<class>/<image>")
    _check_target(out, data_dir)
    with _read_errors_explained(data_dir):
        classes = list_classes(data_dir)
        splits = sorted(each.name for each in data_dir.iterdir() if each.is_dir() and not each.name.startswith("."))
        folders = {split: _images_of(data_dir, split) for split in splits}
        samples = {split: _samples_of(split, folder) for split, folder in folders.items()}
        shards = [shard for split in splits for shard in plan_shards(split, samples[split], shard_size)]
    notes = tuple(note for folder in folders.values() for note in folder.notes)
    return PackPlan(data_dir=data_dir, out=out, classes=classes, shards=tuple(shards), notes=notes)


def plan_shards(split: str, samples: Iterable[Sample], shard_size: int) -> Iterator[Shard]:
    """Yield shards of at most this size, in the order of keys; a sample that is larger gets its own shard."""
    number, packed, size = 0, list[Sample](), len(END_OF_TAR)
    for sample in sorted(samples, key=lambda each: each.key):
        if packed and size + sample.packed_size > shard_size:
            yield Shard(split, number, tuple(packed))
            number, packed, size = number + 1, [], len(END_OF_TAR)
        packed.append(sample)
        size += sample.packed_size
    if packed:
        yield Shard(split, number, tuple(packed))


def write_pack(plan: PackPlan, on_sample: OnSample = lambda sample: None) -> None:
    """Write the shards and their manifest, then rename the folder to the target once everything is on disk.

    Raises:
        KubetrainError: if an image cannot be read or has changed since the plan, or the target cannot be written;
            nothing is left behind.
    """
    with _disk_errors_explained(plan.out), _new_folder(plan.out) as folder:
        files = [file for shard in plan.shards for file in _write_shard(folder, plan.data_dir, shard, on_sample)]
        for split in {shard.split for shard in plan.shards}:
            flush_directory(folder / split)
        classes = [_portable(name) for name in plan.classes]
        write_json(folder / MANIFEST, {"schema": SCHEMA, "classes": classes, "files": files})


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


def _portable(name: str) -> str:
    """Decode a file name as UTF-8, regardless of the locale in which it was read."""
    return os.fsencode(name).decode(errors="surrogateescape")


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to the path if the block succeeds, and removed if it fails."""
    partial = path.with_name(f".{path.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    with (partial / "lock").open("w") as lock:
        _lock(lock.fileno(), path)
        try:
            shutil.rmtree(partial / "data", ignore_errors=True)
            (partial / "data").mkdir()
            yield partial / "data"
            (partial / "data").rename(path)
            flush_directory(path.parent)
        finally:
            with interrupts_deferred():
                shutil.rmtree(partial, ignore_errors=True)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise KubetrainError(f"{path} is being written by another kubetrain pack: wait for it, or stop it") from None


def _write_shard(folder: Path, data_dir: Path, shard: Shard, on_sample: OnSample) -> list[dict[str, Any]]:
    """Write a shard and its index durably, and return their manifest entries."""
    path, digest = folder / shard.name, hashlib.sha256()
    path.parent.mkdir(exist_ok=True)
    with path.open("wb", buffering=CHUNK_BYTES) as file:
        for chunk in _tar(data_dir, shard, on_sample):
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    described = {"split": _portable(shard.split), "samples": len(shard.samples)}
    index = shard.index.to_json(shard.size)
    write_atomically(index_path(path), index)
    return [
        {**described, **_entry(shard.name, shard.size, digest)},
        _entry(str(index_path(Path(shard.name))), len(index), hashlib.sha256(index)),
    ]


def _entry(name: str, size: int, digest: "hashlib._Hash") -> dict[str, Any]:
    return {"name": _portable(name), "size": size, "sha256": digest.hexdigest()}


def _tar(data_dir: Path, shard: Shard, on_sample: OnSample) -> Iterator[bytes]:
    """Yield the archive in chunks; tarfile itself keeps all members in memory and pads to whole tape records."""
    for sample in shard.samples:
        key, label = sample.key, str(sample.label).encode()
        yield _header(f"{key}.{sample.extension}", sample.size)
        yield from _content(data_dir / sample.path, sample.size)
        yield _padding(sample.size) + _header(f"{key}.cls", len(label)) + label + _padding(len(label))
        on_sample(sample)
    yield END_OF_TAR


def _header(name: str, size: int) -> bytes:
    """Return a tar header without owner or time, so that nothing depends on this machine."""
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o444
    return member.tobuf(tarfile.USTAR_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


def _content(image: Path, size: int) -> Iterator[bytes]:
    remaining = size
    with _read_errors_explained(image), image.open("rb", buffering=0) as file:
        while remaining >= 0 and (chunk := file.read(CHUNK_BYTES)):
            remaining -= len(chunk)
            yield chunk
    if remaining != 0:
        raise KubetrainError(f"{image} changed while it was being packed: pack again when nothing writes to it")


@contextmanager
def _read_errors_explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KubetrainError(
            f"cannot read {error.filename or path} ({error.strerror}): replace it, remove it, or check your permissions"
        ) from error


@contextmanager
def _disk_errors_explained(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KubetrainError(
            f"cannot write to {out} ({error.strerror or error}): choose a writable folder with enough space"
        ) from error
