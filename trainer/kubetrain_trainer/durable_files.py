"""Files that are either whole or absent, whatever kills the writer."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 20


def write_atomically(path: Path, data: bytes) -> None:
    """Write under a temporary name, flush, then rename: readers see the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        flush(file.fileno())
    temporary.replace(path)
    flush_directory(path.parent)


def write_json(path: Path, value: Any, indent: int | None = 2) -> None:
    write_atomically(path, (json.dumps(value, indent=indent, sort_keys=True) + "\n").encode())


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def flush(descriptor: int) -> None:
    os.fsync(descriptor)


def flush_file(path: Path) -> None:
    with path.open("rb") as file:
        flush(file.fileno())


def flush_directory(path: Path) -> None:
    """Make a rename in this directory survive a power cut; network file systems that cannot are left to their own."""
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
