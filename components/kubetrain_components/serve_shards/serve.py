"""Fetch shards of a dataset from the store into the cache of a pod, as the training beside it needs them.

python -m kubetrain_components.serve_shards.serve --uri s3://bucket/dataset --cache-bytes 100000000000 --to /shard-cache
"""

import argparse
import contextlib
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
from typing import Any

from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.store import Access, ObjectStore, StoreUnavailable
from kubetrain_components.serve_shards.bounded_cache import BoundedCache
from kubetrain_components.serve_shards.fetch import fetch_shard
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.shard_cache import PARTS, SOCKET, StoredShard, short_address

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
                error = f"cannot write to the shard cache ({cause.strerror}): lower cache_gb, or use larger disks"
            except Exception as cause:  # noqa: BLE001 - without an answer, the reader would ask again and again
                error = f"the shard cache failed ({type(cause).__name__}: {cause})"
            self._answer({"error": error, "is_curable": is_curable})

    def _answer(self, answer: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the reader was killed
            self.wfile.write(json.dumps(answer).encode() + b"\n")
            self.rfile.read()  # until the reader, which has opened the shard, closes the connection


def _counts(caches: Caches) -> dict[str, int]:
    return {
        "shards_fetched": sum(each.fetched for each in caches.values()),
        "shard_waits": sum(each.waits for each in caches.values()),
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


if __name__ == "__main__":
    sys.exit(main())
