"""A dataset of images in <split>/<class>/<image>. The classes are the folders of the training split."""

import os
from dataclasses import dataclass
from pathlib import Path

from kubetrain_trainer.errors import KubetrainError

LAYOUT = "images must be in <split>/<class>/<image>"
EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp")
# Channel means and standard deviations of pixels in [0, 1] that pretrained models of torchvision and Keras expect.
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class ImageFolder:
    classes: tuple[str, ...]
    paths: tuple[str, ...]
    labels: tuple[int, ...]

    def read(self, sample: int) -> bytes:
        return Path(self.paths[sample]).read_bytes()

    def name(self, sample: int) -> str:
        return self.paths[sample]


def list_classes(data_dir: Path, training_split: str = "train") -> tuple[str, ...]:
    return tuple(_folders(data_dir, training_split))


def list_images(data_dir: Path, split: str, training_split: str = "train") -> ImageFolder:
    """Return the images of a split in an order that is the same in every process and both frameworks.

    Raises:
        KubetrainError: if a folder is missing or empty, or has a class that the training split does not have.
    """
    classes = list_classes(data_dir, training_split)
    unknown = sorted(set(_folders(data_dir, split)) - set(classes))
    if unknown:
        raise KubetrainError(
            f"{data_dir / split} has class '{unknown[0]}' that {training_split}/ does not have: add or remove it"
        )
    found = [(path, label) for label, name in enumerate(classes) for path in _images(data_dir / split / name)]
    if not found:
        raise KubetrainError(f"{data_dir / split} has no images ({', '.join(EXTENSIONS)}) in its class folders")
    return ImageFolder(
        classes=classes, paths=tuple(path for path, _ in found), labels=tuple(label for _, label in found)
    )


def missing_split(data_dir: Path, split: str, layout: str) -> KubetrainError:
    present = ", ".join(sorted(entry.name for entry in os.scandir(data_dir))) if data_dir.is_dir() else "nothing"
    return KubetrainError(
        f"the dataset has no folder '{split}' (it has: {present}); {layout}, "
        "and validation_split and test_split name the folders to use"
    )


def _folders(data_dir: Path, split: str) -> list[str]:
    try:
        entries = list(os.scandir(data_dir / split))
    except (FileNotFoundError, NotADirectoryError):
        raise missing_split(data_dir, split, LAYOUT) from None
    folders = sorted(entry.name for entry in entries if entry.is_dir())
    if not folders and any(entry.name.endswith(".tar") for entry in entries):
        raise KubetrainError(f"{data_dir / split} holds tar shards, not folders of images: set data=tar_shards")
    return folders


def _images(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(entry.path for entry in os.scandir(folder) if entry.name.lower().endswith(EXTENSIONS))
