"""Copies of files, which share their blocks with the original if the file system supports that."""

import fcntl
import os

from kubetrain_components.object_store.checksums import HASHERS, algorithm_of, format_checksum
from kubetrain_trainer.durable_files import CHUNK_BYTES, write_at

FICLONE = 0x40049409
"""The ioctl that copies a file without using space until one of the copies changes, if the file system supports it."""


def clone_file(source: int, target: int) -> bool:
    """Let both files share their blocks; return False if the file system cannot."""
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError:
        return False
    return True


def copy_file(source: int, target: int, checksum: str) -> bool:
    """Copy all bytes; return False if they do not have this checksum."""
    algorithm, at = algorithm_of(checksum), 0
    hasher = HASHERS[algorithm]()
    while chunk := os.read(source, CHUNK_BYTES):
        hasher.update(chunk)
        at = write_at(target, chunk, at)
    return format_checksum(algorithm, hasher) == checksum
