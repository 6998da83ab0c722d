"""Hash anew what manifests describe: dataset versions, checkpoints, exports."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kubetrain_components.sync_dataset.publish import MANIFEST as DATASET_MANIFEST
from kubetrain_components.sync_dataset.publish import read_version, verify_version
from kubetrain_trainer.checkpoint_layout import MANIFEST, CorruptFiles, verify_files
from kubetrain_trainer.durable_files import read_json
from kubetrain_trainer.errors import KubetrainError

FOLDERS_OF = ("versions", "checkpoints", "export")
"""Where staging volumes and training outputs keep what has a manifest."""


@dataclass(frozen=True)
class Verified:
    path: Path
    problems: list[str]


def verify_folder(folder: Path) -> list[Verified]:
    """Verify what this folder is, or all that it holds one or two levels down.

    Raises:
        KubetrainError: where there is nothing complete to verify.
    """
    if not folder.is_dir():
        raise KubetrainError(f"{folder} is not a directory: name a dataset version or a checkpoint directory")
    verified = [_verify(path) for path in _described(folder)]
    if not verified:
        raise KubetrainError(
            f"nothing complete in {folder}: it has neither a {DATASET_MANIFEST} nor a {MANIFEST}, "
            "nor folders that have one; what was being written when its writer ended does not count"
        )
    return verified


def _described(folder: Path) -> Iterator[Path]:
    """The folders with a manifest: this one, else those in it and in the folders that we know."""
    if _has_manifest(folder):
        yield folder
        return
    for parent in (folder, *(folder / name for name in FOLDERS_OF)):
        for path in sorted(parent.iterdir()) if parent.is_dir() else []:
            if not path.name.startswith(".") and _has_manifest(path):
                yield path


def _has_manifest(path: Path) -> bool:
    return (path / DATASET_MANIFEST).is_file() or (path / MANIFEST).is_file()


def _verify(path: Path) -> Verified:
    if (path / DATASET_MANIFEST).is_file():
        version = read_version(path)
        return Verified(path, verify_version(version) if version else [f"{DATASET_MANIFEST} is damaged"])
    try:
        verify_files(path, read_json(path / MANIFEST)["files"])
    except CorruptFiles as error:
        return Verified(path, [str(error)])
    except (ValueError, KeyError, TypeError):
        return Verified(path, [f"{MANIFEST} is damaged"])
    return Verified(path, [])
