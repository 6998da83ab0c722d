"""The download of a shard to a file, resumed after interruptions and verified before anyone can read it."""

import hashlib
from pathlib import Path

from kubetrain_components.object_store.resumed_read import read_resumed
from kubetrain_components.object_store.retries import MAX_CORRUPT_DOWNLOADS
from kubetrain_components.object_store.store import ObjectChanged, ObjectStore, StoredObject, StoreError
from kubetrain_trainer.durable_files import write_at
from kubetrain_trainer.shard_cache import StoredShard

MODE = 0o444


def fetch_shard(store: ObjectStore, shard: StoredShard, path: Path) -> None:
    """
    Raises:
        StoreError: if the shard is not what was synced any more, or cannot be read for minutes.
    """
    partial = path.with_suffix(".partial")
    try:
        for _ in range(MAX_CORRUPT_DOWNLOADS):
            if _download(store, shard, partial) == shard.sha256:
                partial.chmod(MODE)
                partial.rename(path)
                return
    except ObjectChanged as error:
        raise StoreError(
            f"{_name(store, shard)} was changed or deleted after the dataset was synced: start a new run, which syncs "
            "it again"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    raise StoreError(
        f"{_name(store, shard)} does not have the SHA-256 of its manifest, although it arrived {MAX_CORRUPT_DOWNLOADS} "
        "times: pack and upload it again"
    )


def _name(store: ObjectStore, shard: StoredShard) -> str:
    return f"{store.uri.rstrip('/')}/{shard.key}"


def _download(store: ObjectStore, shard: StoredShard, path: Path) -> str:
    """Write the shard to the file, and return its SHA-256."""
    hasher, at = hashlib.sha256(), 0
    with path.open("wb", buffering=0) as file:
        for chunk in read_resumed(store, StoredObject(shard.key, shard.size, shard.etag)):
            hasher.update(chunk)
            at = write_at(file.fileno(), chunk, at)
    return hasher.hexdigest()
