"""Locks on the staging volume: one for each version, so that syncs of different datasets do not wait for each other.

.locks/<digest>  exclusive while a version is made, checked for reuse or deleted
"""

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO

from kubetrain_trainer.errors import KubetrainError

log = logging.getLogger(__name__)

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP}


class InUse(KubetrainError):
    """Another program uses the version or the volume."""


@contextmanager
def version_locked(staging: Path, digest: str, *, wait: bool = True) -> Iterator[float]:
    """Run the block while no other program makes, checks or deletes this version; yield the seconds waited.

    Raises:
        InUse: if another does and wait is False.
    """
    path, waited = staging / ".locks" / digest, 0.0
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a+b") as file:  # NFS allows exclusive locks only on writable files
            waited += _lock(file, staging / "versions" / digest, wait=wait)
            if _is_same_file(file, path):  # else its last user deleted it
                yield waited
                return


def delete_lock(staging: Path, digest: str) -> None:
    """Delete the lock of a version that no longer exists; the caller must hold it."""
    (staging / ".locks" / digest).unlink(missing_ok=True)


def _lock(file: BinaryIO, version: Path, *, wait: bool) -> float:
    """Lock the file and return the seconds waited."""
    started = time.monotonic()
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        if not wait:
            raise InUse(f"another sync is using {version}: try again when it is done") from error
        log.warning("waiting for another sync of %s", version)
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        _warn_of_missing_locks(version.parents[1], str(error))
    return time.monotonic() - started


@cache
def _warn_of_missing_locks(staging: Path, error: str) -> None:
    """Warn once: a pruning locks many versions."""
    remedy = "going on without them, so start one sync at a time"
    log.warning("the volume of %s has no file locks (%s): %s", staging, error, remedy)


def _is_same_file(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
