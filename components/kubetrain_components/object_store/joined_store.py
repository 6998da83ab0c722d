"""Several stores as one, each below a folder of its own."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from kubetrain_components.object_store.sources import text_of
from kubetrain_components.object_store.store import ObjectChanged, ObjectContent, ObjectStore, StoredObject, StoreError


class JoinedStore:
    def __init__(self, stores: Mapping[str, ObjectStore]) -> None:
        """
        Args:
            stores: By the names of their folders.
        """
        self.uri, self._stores = text_of({folder: store.uri for folder, store in stores.items()}), stores

    def list(self) -> Iterator[StoredObject]:
        for folder, store in self._stores.items():
            is_empty = True
            for item in store.list():
                is_empty = is_empty and (not item.key or item.key.endswith("/"))  # what some tools create for a folder
                yield item._replace(key=f"{folder}/{item.key}")
            if is_empty:
                raise StoreError(
                    f"no objects under {store.uri}, the source of {folder}/: check its name, or leave it out"
                )

    def read(self, key: str, etag: str | None = None, start: int = 0, end: int | None = None) -> ObjectContent:
        store, rest = self._place(key)
        return store.read(rest, etag, start, end)

    def checksum(self, key: str, etag: str) -> str | None:
        store, rest = self._place(key)
        return store.checksum(rest, etag)

    def find(self, key: str) -> StoredObject | None:
        store, rest = self._place(key)
        found = store.find(rest)
        return found._replace(key=key) if found else None

    def write(self, key: str, content: bytes | Path) -> None:
        store, rest = self._place(key)
        store.write(rest, content)

    def write_if(self, key: str, content: bytes, etag: str | None) -> None:
        store, rest = self._place(key)
        store.write_if(rest, content, etag)

    def delete(self, key: str) -> None:
        store, rest = self._place(key)
        store.delete(rest)

    def _place(self, key: str) -> tuple[ObjectStore, str]:
        folder, _, rest = key.partition("/")
        if folder not in self._stores:
            raise ObjectChanged(f"{self.uri} has no folder {folder!r}")
        return self._stores[folder], rest
