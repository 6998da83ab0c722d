"""Damaged versions that were replaced, and versions that pruning could not delete completely."""

import logging
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

log = logging.getLogger(__name__)

PRUNED = ".pruned-"
DAMAGED = ".damaged-"
DAMAGED_KEPT_SECONDS = 7 * 24 * 3600
"""Damaged versions, which were made again, are kept this long for people to look at."""


def leftovers(staging: Path, in_use: Iterable[str] = ()) -> list[Path]:
    """Return the folders to delete.

    Args:
        in_use: Paths on the volume that may be in use, perhaps since before the version was damaged.
    """
    versions = staging / "versions"
    return [*versions.glob(f"{PRUNED}*"), *_old_damaged_versions(versions, in_use)]


def _old_damaged_versions(versions: Path, in_use: Iterable[str]) -> Iterator[Path]:
    used = {PurePosixPath(path).parts[:2] for path in in_use}
    for path in versions.glob(f"{DAMAGED}*"):
        digest, _, moved_at = path.name.removeprefix(DAMAGED).rpartition("-")
        is_old = moved_at.isdigit() and time.time_ns() - int(moved_at) > DAMAGED_KEPT_SECONDS * 1_000_000_000
        if is_old and used.isdisjoint({(), ("versions",), ("versions", digest)}):
            yield path


def move_aside(damaged: Path) -> None:
    aside = damaged.with_name(f"{DAMAGED}{damaged.name}-{time.time_ns()}")
    damaged.rename(aside)
    log.warning("%s was damaged: moved it to %s and made it again", damaged, aside)


def delete_tree(folder: Path) -> None:
    """Delete what can be deleted: one file that cannot must not keep all others, and is tried again next time."""
    failures: list[BaseException] = []
    shutil.rmtree(folder, onerror=lambda _, path, failure: failures.append(failure[1]))
    if failures and folder.exists():  # else another pruning deleted it
        log.warning("%s is not deleted completely: %s", folder, failures[0])
