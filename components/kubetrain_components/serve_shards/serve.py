"""Fetch shards of a dataset from the store into the cache of a pod, as the training beside it needs them.

python -m kubetrain_components.serve_shards.serve --uri s3://bucket/dataset --cache-bytes 100000000000 --to /shard-cache
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingMixIn, UnixStreamServer
from tempfile import mkdtemp
from typing import Any

from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.resumed_read import read_resumed
from kubetrain_components.object_store.retries import MAX_CORRUPT_DOWNLOADS
from kubetrain_components.object_store.store import (
    Access,
    ObjectChanged,
    ObjectStore,
    StoredObject,
    StoreError,
    StoreUnavailable,
)
from kubetrain_components.serve_shards.bounded_cache import BoundedCache
from kubetrain_trainer.data.shard_cache import PARTS, SOCKET, StoredShard, short_address
from kubetrain_trainer.durable_files import write_at
from kubetrain_trainer.errors import KubetrainError

NAME = "shard-cache-"

MODE = 0o444

Caches = Mapping[str, BoundedCache]
SOCKET_MODE_IN_PODS = 0o666
"""The training container may run as another user."""


class Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128
    caches: Caches


class Handler(StreamRequestHandler):
    """One request of a ShardCache."""

    server: Server

    def handle(self) -> None:
        request = self._request()
        if "announce" in request:
            self.server.caches[request["part"]].announce(map(StoredShard._make, request["announce"]))
        elif "need" in request:
            self._hold(request)
        elif request:
            self._answer(_counts(self.server.caches))

    def _request(self) -> dict[str, Any]:
        """Return the request; empty if the reader was killed."""
        with contextlib.suppress(OSError, ValueError):
            request: dict[str, Any] = json.loads(self.rfile.readline())
            return request
        return {}

    def _hold(self, request: Mapping[str, Any]) -> None:
        with contextlib.ExitStack() as stack:
            error, is_curable = "", False
            try:
                cache = self.server.caches[request["part"]]
                stack.enter_context(cache.held(StoredShard._make(request["need"])))
            except KubetrainError as cause:
                error, is_curable = str(cause), isinstance(cause, StoreUnavailable)
            except OSError as cause:
                error = f"cannot write to the shard cache ({cause.strerror}): lower data.cache_gb, or use larger disks"
            except Exception as cause:  # noqa: BLE001 - without an answer, the reader would ask again and again
                error = f"the shard cache failed ({type(cause).__name__}: {cause})"
            self._answer({"error": error, "is_curable": is_curable})

    def _answer(self, answer: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the reader was killed
            self.wfile.write(json.dumps(answer).encode() + b"\n")
            self.rfile.read()  # until the reader, which has opened the shard, closes the connection


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
    (folder / SOCKET).unlink(missing_ok=True)
    with short_address(folder) as address, Server(address, Handler) as server:
        (folder / SOCKET).chmod(socket_mode)
        server.caches = caches
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
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
    # The training is over, or will ask the process that replaces this one.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    try:
        store = open_store(parsed.uri, parsed.endpoint, parsed.access, was_reached=True)
        with serving(store, parsed.to, parsed.cache_bytes, SOCKET_MODE_IN_PODS):
            print(f"serving the shards of {store.uri} from {parsed.to}", flush=True)
            threading.Event().wait()
    except KubetrainError as error:
        print(f"error: {error}", flush=True)
        return 1
    return 0


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
