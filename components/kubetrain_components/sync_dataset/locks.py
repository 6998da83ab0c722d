"""Locks on the staging volume: one for each version, so that syncs of different datasets do not wait for each other.

.lock            shared by every program here; older releases of kubetrain lock it exclusively for a whole sync
.locks/<digest>  exclusive while a version is made, checked for reuse or deleted
"""

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kubetrain_trainer.errors import KubetrainError

log = logging.getLogger(__name__)

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP}


class InUse(KubetrainError):
    """Another program uses the version or the volume."""


@contextmanager
def volume_shared(staging: Path, *, wait: bool = True) -> Iterator[float]:
    """Run the block while no older release of kubetrain syncs to the volume; yield the seconds waited.

    Raises:
        InUse: if one does and wait is False.
    """
    (staging / "versions").mkdir(parents=True, exist_ok=True)
    with _open(staging / ".lock") as file:
        yield _lock(file, fcntl.LOCK_SH, str(staging), wait=wait)


@contextmanager
def version_locked(staging: Path, digest: str, *, wait: bool = True) -> Iterator[float]:
    """Run the block while no other program makes, checks or deletes this version; yield the seconds waited.

    Raises:
        InUse: if another does and wait is False.
    """
    path, waited = staging / ".locks" / digest, 0.0
    path.parent.mkdir(exist_ok=True)
    while True:
        with _open(path) as file:
            waited += _lock(file, fcntl.LOCK_EX, str(staging / "versions" / digest), wait=wait)
            if _is_same_file(file, path):  # else its last user deleted it
                yield waited
                return


def delete_lock(staging: Path, digest: str) -> None:
    """Delete the lock of a version that no longer exists; the caller must hold it."""
    (staging / ".locks" / digest).unlink(missing_ok=True)


def _open(path: Path) -> BinaryIO:
    return path.open("a+b")  # NFS allows shared locks only on readable files, and exclusive ones on writable files


def _lock(file: BinaryIO, kind: int, what: str, *, wait: bool) -> float:
    """Lock the file and return the seconds waited."""
    started = time.monotonic()
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        if not wait:
            raise InUse(f"another sync is using {what}: try again when it is done") from error
        log.warning("waiting for another sync of %s", what)
        fcntl.flock(file, kind)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        if kind == fcntl.LOCK_SH:  # every program takes this lock first
            log.warning(
                "the volume of %s has no file locks (%s): going on without them, so start one sync at a time",
                what,
                error,
            )
    return time.monotonic() - started


def _is_same_file(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
