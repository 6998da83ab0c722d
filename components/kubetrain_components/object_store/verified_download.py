"""An object as a file, which has the bytes that its manifest names or does not exist."""

import hashlib
from pathlib import Path

from kubetrain_components.object_store.resumed_read import read_resumed
from kubetrain_components.object_store.retries import MAX_CORRUPT_DOWNLOADS
from kubetrain_components.object_store.store import ObjectStore, StoredObject, StoreError
from kubetrain_trainer.durable_files import write_at


def download_verified(store: ObjectStore, item: StoredObject, sha256: str, path: Path, mode: int) -> None:
    """
    Raises:
        ObjectChanged: if it is not this object any more.
        StoreUnavailable: if it cannot be read for minutes.
        StoreError: if it has other bytes.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        for _ in range(MAX_CORRUPT_DOWNLOADS):
            if _download(store, item, partial) == sha256:
                partial.chmod(mode)
                partial.rename(path)
                return
    finally:
        partial.unlink(missing_ok=True)
    raise StoreError(
        f"{name_of(store, item)} does not have the SHA-256 of its manifest, although it arrived "
        f"{MAX_CORRUPT_DOWNLOADS} times: upload it again"
    )


def name_of(store: ObjectStore, item: StoredObject) -> str:
    return f"{store.uri.rstrip('/')}/{item.key}"


def _download(store: ObjectStore, item: StoredObject, path: Path) -> str:
    """Write the object to the file, and return its SHA-256."""
    hasher, at = hashlib.sha256(), 0
    with path.open("wb", buffering=0) as file:
        for chunk in read_resumed(store, item):
            hasher.update(chunk)
            at = write_at(file.fileno(), chunk, at)
    return hasher.hexdigest()
