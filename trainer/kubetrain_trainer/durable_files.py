"""Writes that leave the old file or the new one if the writer is killed, and that lose no bytes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kubetrain_trainer.failures import os_error_behind

CHUNK_BYTES = 1 << 20


def write_atomically(path: Path, data: bytes, mode: int = 0o666) -> None:
    write_all_atomically(path, [data], mode)


def write_all_atomically(path: Path, parts: Iterable[bytes], mode: int = 0o666) -> None:
    """Write to a temporary file, flush it, then rename it, so that readers never see a partial file.

    Args:
        mode: The permissions, which the umask may reduce.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with with_filename(path), open(temporary, "wb", opener=partial(os.open, mode=mode)) as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    flush_directory(path.parent)


def append(path: Path, data: bytes) -> None:
    with with_filename(path), path.open("ab") as file:
        file.write(data)


def write_at(file: int, chunk: bytes | memoryview, at: int) -> int:
    """Write the whole chunk at an offset, which a single write might not, and return the offset after it."""
    left = memoryview(chunk)
    while left:
        count = os.pwrite(file, left, at)
        at, left = at + count, left[count:]
    return at


@contextlib.contextmanager
def with_filename(path: Path) -> Iterator[None]:
    """Add the file name to OS errors that lack it, such as those of a write to a full disk."""
    try:
        yield
    except Exception as error:
        if (cause := os_error_behind(error)) is not None:
            cause.filename = cause.filename or str(path)
        raise


def write_json(path: Path, value: Any, indent: int | None = 2) -> None:
    write_atomically(path, (json.dumps(finite(value), indent=indent, sort_keys=True, allow_nan=False) + "\n").encode())


def finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, with None."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def flush_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def forget_cached(descriptor: int) -> None:
    """Let the next reads of a flushed file come from the disk: after a failed write, the cache has other bytes."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def flush_directory(path: Path) -> None:
    """Make a rename in this directory survive a power failure, if its file system supports that."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
