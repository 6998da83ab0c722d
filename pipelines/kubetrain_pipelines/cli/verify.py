"""Verify the hashes of dataset versions, checkpoints and exports, and of the manifests that other files name."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubetrain_components.sync_dataset.manifest import MANIFEST as DATASET_MANIFEST
from kubetrain_components.sync_dataset.publish import UnreadableVersion, read_version
from kubetrain_components.sync_dataset.verify import verify_version
from kubetrain_trainer.durable_files import read_json
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.failures import describe_os_error
from kubetrain_trainer.output.manifest import MANIFEST, intact, verify_files
from kubetrain_trainer.output.training_output import TrainingOutput

MANIFEST_PARENTS = ("versions", "checkpoints")
"""Subfolders of staging volumes and training outputs whose folders have a manifest."""
CHECKPOINT_REFERENCES = ("result.json", f"export/{MANIFEST}")
"""Files of a training output that name a checkpoint and the hash of its manifest."""


@dataclass(frozen=True)
class Verified:
    path: Path
    problems: list[str]

    def lines(self) -> list[str]:
        return [f"corrupt  {self.path}: {problem}" for problem in self.problems] or [f"intact   {self.path}"]


def verify_and_show(folder: Path, *, as_json: bool) -> int:
    """Print the result for each folder and return the exit code."""
    verified = verify_folder(folder)
    if as_json:
        print(json.dumps([{"path": str(item.path), "problems": item.problems} for item in verified], indent=2))
    else:
        print("\n".join(line for item in verified for line in item.lines()))
    return 1 if any(item.problems for item in verified) else 0


def verify_folder(folder: Path) -> list[Verified]:
    """Verify this folder if it has a manifest, else the folders inside it (a workspace, staging volume or output).

    Raises:
        KubetrainError: if there is nothing complete to verify, or a folder of versions or checkpoints cannot be read.
    """
    if not folder.is_dir():
        raise KubetrainError(f"{folder} is not a directory: pass a dataset version or a checkpoint directory")
    try:
        described = _described(folder)
    except OSError as error:
        raise KubetrainError(f"cannot read {error.filename} {describe_os_error(error)}") from error
    verified = [Verified(path, _problems_or_error(path)) for path in described]
    # A running training removes old checkpoints.
    verified = [item for item in verified if item.path.exists()]
    if not verified:
        raise KubetrainError(
            f"nothing complete in {folder}: neither the folder nor its subfolders contain a {DATASET_MANIFEST} or "
            f"a {MANIFEST}; interrupted writes are ignored"
        )
    return verified


def _described(folder: Path) -> list[Path]:
    """Return this folder if it has a manifest, else the folders with one in the known places below it."""
    if _has_manifest(folder):
        return [folder]
    roots = [folder, *filter(_can_enter, [*_subfolders(folder), *_subfolders(folder / "output")])]
    return list(dict.fromkeys(path for root in roots for path in _described_in(root)))


def _described_in(root: Path) -> Iterator[Path]:
    for parent in (root, *(root / name for name in MANIFEST_PARENTS)):
        yield from (path for path in _subfolders(parent) if _has_manifest(path))
    if any((root / name).is_file() for name in CHECKPOINT_REFERENCES):
        yield root


def _subfolders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _can_enter(folder: Path) -> bool:
    """Return False for a folder of others, such as lost+found."""
    try:
        (folder / MANIFEST).exists()
    except PermissionError:
        return False
    return True


def _has_manifest(path: Path) -> bool:
    """Return True also for a version or checkpoint that cannot be read, which is a problem to report."""
    try:
        return _has_file(path)
    except PermissionError:
        return path.parent.name in MANIFEST_PARENTS


def _has_file(path: Path) -> bool:
    return (path / DATASET_MANIFEST).is_file() or (path / MANIFEST).is_file()


def _problems_or_error(path: Path) -> list[str]:
    """Return a file that cannot be read as a problem, so that the other folders are verified."""
    try:
        return _problems_of(path)
    except UnreadableVersion as error:
        return [str(error)]
    except OSError as error:
        return [f"cannot read {error.filename} {describe_os_error(error)}"]


def _problems_of(path: Path) -> list[str]:
    if (path / DATASET_MANIFEST).is_file():
        version = read_version(path)
        return verify_version(version) if version else [f"{DATASET_MANIFEST} is damaged"]
    if (path / MANIFEST).is_file():
        return _problems_in(path / MANIFEST, lambda manifest: verify_files(path, intact(manifest)["files"]))
    references = [path / name for name in CHECKPOINT_REFERENCES if (path / name).is_file()]
    return [problem for file in references for problem in _problems_in(file, TrainingOutput(path).verify_result)]


def _problems_in(file: Path, check: Callable[[Any], object]) -> list[str]:
    """Return the problems that a check finds with the content of a JSON file."""
    try:
        check(read_json(file))
    except KubetrainError as error:
        return [str(error)]
    except FileNotFoundError:
        return [f"{file.name} is missing"]
    except (ValueError, KeyError, TypeError):
        return [f"{file.name} is damaged"]
    return []
