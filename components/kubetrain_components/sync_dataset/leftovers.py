"""Unfinished and damaged versions on the staging volume, those that could not be deleted whole, and its free space."""

import logging
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from kubetrain_components.sync_dataset.locks import InUse, delete_lock, version_locked
from kubetrain_components.sync_dataset.partial_version import PartialVersion, partial_versions
from kubetrain_trainer.errors import KubetrainError

log = logging.getLogger(__name__)

PRUNED = ".pruned-"
DAMAGED = ".damaged-"
KEPT_SECONDS = 7 * 24 * 3600
"""Unfinished versions are kept this long, so that their next sync resumes, and damaged ones for people to look at."""


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
        is_old = moved_at.isdigit() and time.time_ns() - int(moved_at) > KEPT_SECONDS * 1_000_000_000
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


def check_space(staging: Path, needed: int) -> None:
    """Check that this many bytes fit; if not, delete the unfinished versions of interrupted syncs, oldest first.

    Raises:
        KubetrainError: if they do not fit.
    """
    for partial in sorted(partial_versions(staging), key=PartialVersion.last_used):
        if needed <= shutil.disk_usage(staging).free:
            break
        _delete(staging, partial)
    free = shutil.disk_usage(staging).free
    if needed > free:
        raise KubetrainError(
            f"{staging} has {free:,} bytes free, but the download needs {needed:,}: free space or choose another volume"
        )


def delete_abandoned(staging: Path, source: str) -> None:
    """Delete the unfinished versions of this source's older listings, and those that no sync has resumed for long."""
    oldest = time.time() - KEPT_SECONDS
    for partial in partial_versions(staging):
        if partial.is_from(source) or partial.last_used() < oldest:
            _delete(staging, partial)


def _delete(staging: Path, partial: PartialVersion) -> None:
    """Delete an unfinished version unless a sync is using it."""
    with suppress(InUse), version_locked(staging, partial.digest, wait=False):
        shutil.rmtree(partial.path, ignore_errors=True)
        delete_lock(staging, partial.digest)
