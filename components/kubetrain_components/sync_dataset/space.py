"""Space on the staging volume, and the unfinished versions that take it up."""

import shutil
import time
from contextlib import suppress
from pathlib import Path

from kubetrain_components.sync_dataset.locks import InUse, delete_lock, version_locked
from kubetrain_components.sync_dataset.partial_version import PartialVersion, partial_versions
from kubetrain_trainer.errors import KubetrainError

KEPT_SECONDS = 7 * 24 * 3600.0
"""Unfinished versions of other datasets are kept this long, so that their next sync resumes."""


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
