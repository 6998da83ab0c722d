"""A dataset of images in <split>/<class>/<image>. The classes are the folders of the training split."""

import logging
import os
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, filterfalse
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, overload

from kubetrain_trainer.errors import KubetrainError

LAYOUT = "images must be in <split>/<class>/<image>"
LAYOUT_PARTS = 3
TRAINING_SPLIT = "train"
EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp")
MAX_FILES = 2_000_000
"""With more images than this, tar shards are recommended."""
MAX_KINDS = 8
MAX_NAMES = 8
log = logging.getLogger(__name__)


class PackedNames(Sequence[str]):
    """Millions of names in two arrays: a third of the memory of strings, and processes can share it."""

    def __init__(self, text: Any, ends: Any) -> None:
        """
        Args:
            text: Buffer of the names, one after the other, as the file system encodes them.
            ends: Array of the places where they end.
        """
        self.text, self.ends = text, ends

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        text, ends = bytearray(), array("q")
        for name in names:
            text += os.fsencode(name)
            ends.append(len(text))
        return cls(text, ends)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        start = self.ends[index - 1] if index else 0
        return os.fsdecode(bytes(self.text[start : self.ends[index]]))


@dataclass(frozen=True, kw_only=True)
class ImageFolder:
    classes: tuple[str, ...]
    paths: PackedNames
    labels: "array[int]"
    notes: tuple[str, ...] = ()
    """Notes for users, such as how many other files are left out."""

    def read(self, sample: int) -> bytes:
        return Path(self.paths[sample]).read_bytes()

    def name(self, sample: int) -> str:
        return in_dataset(self.paths[sample], LAYOUT_PARTS)

    def files_checksum(self) -> int:
        """Return a checksum of the names in this split, of the labels, and of the sizes of some files."""
        split, some = Path(self.paths[0]).parents[1], map(Path, self.paths[:: len(self.labels) // 8 + 1])
        names = bytes(self.paths.text).replace(os.fsencode(split), b"")  # the dataset may be elsewhere on another node
        sizes = [path.stat().st_size for path in some if path.exists()]
        return zlib.crc32(names + bytes(self.labels) + repr(sizes).encode())


def in_dataset(path: str, parts: int) -> str:
    """Return the file's name in the source of the dataset, of which this path may be a copy."""
    return f"{'/'.join(Path(path).parts[-parts:])} in the dataset"


def list_classes(data_dir: Path, split: str = TRAINING_SPLIT) -> tuple[str, ...]:
    """
    Raises:
        KubetrainError: if the split has none.
    """
    entries = _entries(data_dir, split)
    if classes := tuple(sorted(_folders(entries))):
        return classes
    there = _describe_found(Counter(map(_kind, entries)))
    raise KubetrainError(f"{data_dir / split} has no folders of classes{there}: {LAYOUT}")


def list_images(data_dir: Path, split: str) -> ImageFolder:
    """Return the images of a split in an order that is the same in every process and both frameworks.

    Raises:
        KubetrainError: if a folder is missing, the split or a class of the training split has no images, or the split
            has a class that the training split does not have.
    """
    classes, entries = list_classes(data_dir), _entries(data_dir, split)
    _check_known(data_dir / split, entries, classes)
    names, labels, left_out = list[list[str]](), array("i"), Counter(map(_kind, filterfalse(is_folder, entries)))
    for label, name in enumerate(classes):
        images, others = _scan(data_dir / split / name)
        if not images and split == TRAINING_SPLIT:
            raise no_images(data_dir / split / name, others)
        names.append(images)
        labels.extend([label] * len(images))
        left_out += others
    if not labels:
        raise no_images(data_dir / split, left_out)
    notes = tuple(_notes(data_dir / split, len(labels), left_out))
    paths = PackedNames.of(chain.from_iterable(names))
    return ImageFolder(classes=classes, paths=paths, labels=labels, notes=notes)


def check_classes(data_dir: Path, split: str) -> None:
    """
    Raises:
        KubetrainError: if the split has a class that the training split does not have.
    """
    classes = list_classes(data_dir)
    _check_known(data_dir / split, _entries(data_dir, split), classes)


def _check_known(folder: Path, entries: Iterable[os.DirEntry[str]], classes: Iterable[str]) -> None:
    if unknown := _folders(entries).difference(classes):
        raise KubetrainError(
            f"{folder} has class '{min(unknown)}' that {TRAINING_SPLIT}/ does not have: add or remove it"
        )


def log_notes(samples: Any) -> None:
    """Log what users should know about these samples, which may be those of a custom task."""
    for note in getattr(samples, "notes", ()):
        log.warning(note)


def no_images(folder: Path, left_out: Mapping[str, int] = MappingProxyType({})) -> KubetrainError:
    return KubetrainError(
        f"{folder} has no images ({', '.join(EXTENSIONS)}){_describe_found(left_out)}: add images, or remove it"
    )


def missing_split(data_dir: Path, split: str, layout: str) -> KubetrainError:
    present = _some_names(data_dir) if data_dir.is_dir() else ""
    return KubetrainError(
        f"the dataset has no folder '{split}' (it has: {present or 'nothing'}); {layout}, and data.validation_split "
        "and data.test_split name the folders to use"
    )


def _some_names(folder: Path) -> str:
    """Return the names in the folder, but no more than tell what it is: it may have a file for each image."""
    entries = sorted(os.scandir(folder), key=lambda entry: (not is_folder(entry), entry.name))
    more = [f"{len(entries) - MAX_NAMES:,} more"] if len(entries) > MAX_NAMES else []
    return ", ".join([*(entry.name for entry in entries[:MAX_NAMES]), *more])


def _folders(entries: Iterable[os.DirEntry[str]]) -> set[str]:
    return {entry.name for entry in entries if is_folder(entry)}


def _entries(data_dir: Path, split: str) -> list[os.DirEntry[str]]:
    try:
        entries = list(os.scandir(data_dir / split))
    except (FileNotFoundError, NotADirectoryError):
        raise missing_split(data_dir, split, LAYOUT) from None
    if not any(map(is_folder, entries)) and any(entry.name.endswith(".tar") for entry in entries):
        raise KubetrainError(f"{data_dir / split} holds tar shards, not folders of images: set data.format=tar_shards")
    return entries


def _scan(folder: Path) -> tuple[list[str], Counter[str]]:
    """Return the images of a class, and how many other things of which kind are beside them."""
    entries = list(os.scandir(folder)) if folder.is_dir() else []
    images = sorted(entry.path for entry in entries if _is_image(entry))
    return images, Counter(map(_kind, filterfalse(_is_image, entries)))


def is_folder(entry: os.DirEntry[str] | Path) -> bool:
    """Return True for folders, except hidden ones such as .ipynb_checkpoints."""
    return entry.is_dir() and not entry.name.startswith(".")


def _is_image(entry: os.DirEntry[str]) -> bool:
    """Return True by the extension, except for the ._NAME files of macOS, which hold attributes of NAME."""
    return entry.name.lower().endswith(EXTENSIONS) and not entry.name.startswith("._")


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_dir():
        return f"folder {entry.name}" if entry.name.startswith(".") else "folder"
    if entry.name.startswith("."):
        return "hidden file"
    return Path(entry.name).suffix.lower() or "file without extension"


def _notes(folder: Path, images: int, left_out: Mapping[str, int]) -> Iterator[str]:
    if left_out:
        yield (
            f"{folder}: {images} images are read and these are left out: {_listed(left_out)} (images are "
            f"{', '.join(EXTENSIONS)} directly in the folder of a class)"
        )
    if images > MAX_FILES:
        yield (
            f"{folder} has {images:,} images in single files, whose names take memory in every loading process: pack "
            "them into tar shards with `kubetrain pack`, and set data.format=tar_shards"
        )


def _describe_found(left_out: Mapping[str, int]) -> str:
    return f"; it has {_listed(left_out)}" if left_out else ""


def _listed(left_out: Mapping[str, int]) -> str:
    """Return the most frequent kinds, such as "120 .webp, 1 folder"."""
    common = Counter(left_out).most_common(MAX_KINDS)
    more = ["other kinds"] if len(left_out) > MAX_KINDS else []
    return ", ".join([*(f"{count:,} {kind}" for kind, count in common), *more])
