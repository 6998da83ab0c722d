"""A store of tar shards for runs that read them from it: a version of the dataset lists the shards and lacks them."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kubetrain_components.object_store.retries import with_retries
from kubetrain_components.object_store.store import ObjectChanged, ObjectContent, ObjectStore, StoredObject
from kubetrain_trainer.data.shard_cache import STORED_SHARDS, StoredShard, stored_shards_json
from kubetrain_trainer.data.shard_index import index_path
from kubetrain_trainer.data.tar_shards import MANIFEST, SCHEMA
from kubetrain_trainer.errors import KubetrainError

SHARD = ".tar"
SHARD_FIELDS = ("name", "size", "sha256")
SHARDS_IN_CACHE = 16
"""Number of shards of the largest size that fit the cache at least: a quarter of them in the smaller part of it."""


class ShardsInStore:
    def __init__(self, store: ObjectStore, cache_bytes: int) -> None:
        """
        Args:
            cache_bytes: The size of the cache through which a pod will read the shards.
        """
        self.uri, self._store, self._cache_bytes = store.uri, store, cache_bytes
        self.find, self.write, self.write_if, self.delete = store.find, store.write, store.write_if, store.delete
        self._list_of_shards = b""

    def list(self) -> Iterator[StoredObject]:
        """List the objects that are not shards, and one that lists the shards.

        Raises:
            KubetrainError: if they are not those of `kubetrain pack`, or the cache is too small for them.
        """
        found = {item.key: item for item in self._store.list()}
        yield from (item for item in found.values() if not item.key.endswith(SHARD))
        shards = [stored_shard(self.uri, shard, found) for shard in described_shards(self._store, found.get(MANIFEST))]
        check_cache(self._cache_bytes, shards)
        self._list_of_shards = stored_shards_json(shards)
        yield StoredObject(STORED_SHARDS, len(self._list_of_shards), self._etag)

    def read(self, key: str, etag: str | None = None, start: int = 0, end: int | None = None) -> ObjectContent:
        if key != STORED_SHARDS:
            return self._store.read(key, etag, start, end)
        self._check(etag)
        return ObjectContent(iter([self._list_of_shards[start:end]]), None if start or end else f"md5:{self._etag}")

    def checksum(self, key: str, etag: str) -> str | None:
        if key != STORED_SHARDS:
            return self._store.checksum(key, etag)
        self._check(etag)
        return f"md5:{self._etag}"

    @property
    def _etag(self) -> str:
        return hashlib.md5(self._list_of_shards, usedforsecurity=False).hexdigest()

    def _check(self, etag: str | None) -> None:
        if etag not in (None, self._etag):
            raise ObjectChanged(f"the shards of {self.uri} were changed")


def described_shards(store: ObjectStore, manifest: StoredObject | None) -> Sequence[Mapping[str, Any]]:
    """Return what the manifest of the packed dataset says of the shards.

    Raises:
        KubetrainError: if there is none.
    """
    if manifest:
        content = with_retries(lambda: store.read(MANIFEST, manifest.etag).read())
        with contextlib.suppress(ValueError, KeyError, TypeError):
            described = json.loads(content)
            if described["schema"] == SCHEMA:
                return [{name: file[name] for name in SHARD_FIELDS} for file in described["files"] if "split" in file]
    raise KubetrainError(
        f"{store.uri} has no {MANIFEST} of `kubetrain pack`, which data.delivery=cache needs: pack the dataset"
    )


def stored_shard(uri: str, described: Mapping[str, Any], found: Mapping[str, StoredObject]) -> StoredShard:
    """
    Raises:
        KubetrainError: if the store lacks the shard or its index.
    """
    name, size = described["name"], described["size"]
    stored = found.get(name)
    if stored is None or stored.size != size or index_path(Path(name)).as_posix() not in found:
        raise KubetrainError(
            f"{uri} lacks {name} with {size} bytes, as its {MANIFEST} says, or the index of it: upload both again"
        )
    return StoredShard(name, size, stored.etag, described["sha256"])


def check_cache(cache_bytes: int, shards: Sequence[StoredShard]) -> None:
    """
    Raises:
        KubetrainError: if too few of the shards fit the cache.
    """
    needed = SHARDS_IN_CACHE * max((shard.size for shard in shards), default=0)
    if cache_bytes < needed:
        raise KubetrainError(
            f"data.cache_gb must be at least {needed / 1e9:.3g}, {SHARDS_IN_CACHE} times the largest shard: raise it, "
            "or pack with a smaller --shard-size"
        )
