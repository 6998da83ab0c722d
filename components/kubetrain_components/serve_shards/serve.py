"""Fetch shards of a dataset from the store into the cache of a pod, as the training beside it needs them.

python -m kubetrain_components.serve_shards.serve --uri s3://bucket/dataset --cache-bytes 100000000000 --to /shard-cache
"""

import argparse
import contextlib
import fcntl
import shutil
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.store import Access, ObjectChanged, ObjectStore, StoredObject, StoreError
from kubetrain_components.object_store.verified_download import download_verified, name_of
from kubetrain_components.serve_shards.bounded_cache import BoundedCache
from kubetrain_components.socket_server import SOCKET_MODE_IN_PODS, answering, serve_in_pod
from kubetrain_trainer.data.shard_cache import PARTS, StoredShard

NAME = "shard-cache-"

MODE = 0o444

Caches = Mapping[str, BoundedCache]
DISK_PROBLEM = "lower data.cache_gb, or use larger disks"


@contextlib.contextmanager
def _answer(caches: Caches, request: Mapping[str, Any]) -> Iterator[Mapping[str, Any] | None]:
    """Answer one request of a ShardCache."""
    if "announce" in request:
        caches[request["part"]].announce(map(StoredShard._make, request["announce"]))
        yield None
    elif "need" in request:
        with caches[request["part"]].held(StoredShard._make(request["need"])):
            yield {}
    else:
        yield {"counts": _counts(caches)}


def _counts(caches: Caches) -> dict[str, int]:
    return {
        "shards_fetched": sum(cache.fetched for cache in caches.values()),
        "shard_waits": sum(item.waits for item in caches.values()),
    }


@contextlib.contextmanager
def serving(store: ObjectStore, folder: Path, cache_bytes: int, socket_mode: int = 0o600) -> Iterator[None]:
    """Serve the shards of a store from a folder, which is emptied."""
    fetch = partial(fetch_shard, store)
    caches = {part: BoundedCache(folder / part, int(cache_bytes * share), fetch) for part, share in PARTS.items()}
    try:
        with answering(folder, partial(_answer, caches), "the shard cache", DISK_PROBLEM, socket_mode):
            yield
    finally:
        for cache in caches.values():
            cache.close()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch shards as a training needs them.", allow_abbrev=False)
    parser.add_argument("--uri", required=True, help="the dataset: s3://BUCKET/PREFIX")
    parser.add_argument("--endpoint", default="", help="URL of the S3 server (default: AWS)")
    parser.add_argument("--access", type=Access, choices=list(Access), default=Access.CREDENTIALS)
    parser.add_argument("--cache-bytes", type=int, required=True, help="most that the shards take")
    parser.add_argument("--to", type=Path, required=True, help="folder of the cache")
    parsed = parser.parse_args()
    return serve_in_pod(_serving_as_told(parsed))


@contextlib.contextmanager
def _serving_as_told(parsed: argparse.Namespace) -> Iterator[str]:
    store = open_store(parsed.uri, parsed.endpoint, parsed.access, was_reached=True)
    with serving(store, parsed.to, parsed.cache_bytes, SOCKET_MODE_IN_PODS):
        yield f"serving the shards of {store.uri} from {parsed.to}"


def fetch_shard(store: ObjectStore, shard: StoredShard, path: Path) -> None:
    """
    Raises:
        StoreError: if the shard is not what was synced any more, or cannot be read for minutes.
    """
    item = StoredObject(shard.key, shard.size, shard.etag)
    try:
        download_verified(store, item, shard.sha256, path, MODE)
    except ObjectChanged as error:
        raise StoreError(
            f"{name_of(store, item)} was changed or deleted after the dataset was synced: start a new run, which syncs "
            "it again"
        ) from error


@contextlib.contextmanager
def own_folder(workspace: Path) -> Iterator[Path]:
    """Yield a new folder, which no other run removes while the block runs."""
    for folder in workspace.glob(f"{NAME}*"):
        with contextlib.suppress(OSError), _locked(folder):
            shutil.rmtree(folder)
    workspace.mkdir(parents=True, exist_ok=True)
    created = Path(mkdtemp(prefix=f".{NAME}", dir=workspace))
    with _locked(created):  # before it has the name that other runs look for
        folder = created.rename(workspace / created.name.removeprefix("."))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


if __name__ == "__main__":
    sys.exit(main())
