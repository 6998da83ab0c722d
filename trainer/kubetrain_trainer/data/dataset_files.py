"""The files of a dataset in pods: a run uses them only if they are still those of its dataset version.

<output root>/.datasets/<digest>.jsonl    of data on a PVC of yours: what the version is the digest of
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.processes.entry_point import Arguments

FOLDER = ".datasets"
OF_FILE_SYSTEMS = "lost+found"
"""A folder at the root of many volumes, which only root may read."""
CHANGED = "changed at "
"""Begins the tags of files, so that no dataset in a store, whose objects have ETags, has the same digest."""


def listing_path(outputs: Path, digest: str) -> Path:
    return outputs / FOLDER / f"{digest}.jsonl"


def check_dataset(arguments: Arguments) -> None:
    """
    Raises:
        KubetrainError: if the dataset is no longer the version that the run began with, as far as is known.
    """
    listing = listing_path(arguments.output.path.parent, arguments.dataset_digest)
    if not listing.is_file():
        check_no_file_is_lost(arguments.data_dir, arguments.dataset_files)
        return
    found = {name: facts for name, *facts in files_in(arguments.data_dir)}
    with listing.open() as lines:
        differing = (name for name, *facts in map(json.loads, lines) if found.pop(name, None) != facts)
        name = next(differing, None) or min(found, default="")
    if name:
        raise KubetrainError(
            f"{arguments.data_dir} is no longer the dataset version that the run began with: {name!r} was changed, "
            "added or removed; start a new run when nothing writes to it"
        )


def check_no_file_is_lost(data_dir: Path, published: int) -> None:
    """Compare the number of files with that of the version's manifest; 0 if the data is not a version.

    Volumes may be purged or restored after a version was synced.

    Raises:
        KubetrainError: if there are fewer.
    """
    found = sum(1 for _ in entries_in(data_dir)) if published else 0
    if found < published:
        raise KubetrainError(
            f"{data_dir} has {found} files, but the dataset version was published with {published}: the others were "
            "lost since (is its volume purged, or was it restored?); delete the version and sync the dataset again"
        )


def files_in(root: Path) -> Iterator[tuple[str, int, str]]:
    """Yield the names, sizes and tags of files, in any order; refuse what is neither a file nor a folder."""
    for name, item in entries_in(root, without=OF_FILE_SYSTEMS):
        if not item.is_file(follow_symlinks=False):
            kind = "a link" if item.is_symlink() else "a device, pipe or socket"
            raise KubetrainError(f"{name!r} is {kind}, but a dataset has only files and folders: remove it")
        facts = item.stat(follow_symlinks=False)
        yield name, facts.st_size, f"{CHANGED}{facts.st_mtime_ns}"


def entries_in(root: Path, without: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all but folders, by relative path; unlike rglob() and walk(), this keeps no list of them."""
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(root / folder) as found:
            for item in found:
                name = f"{folder}{item.name}"
                if not item.is_dir(follow_symlinks=False):
                    yield name, item
                elif name != without:
                    folders.append(f"{name}/")
