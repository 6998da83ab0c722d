"""The objects of a store whose keys match patterns, as those of s5cmd and aws s3: * also stands for slashes."""

import re
from collections.abc import Iterator, Sequence
from fnmatch import translate

from kubetrain_components.object_store.store import ObjectStore, StoredObject, StoreError


class FilteredStore:
    def __init__(self, store: ObjectStore, include: Sequence[str], exclude: Sequence[str]) -> None:
        """
        Args:
            include: Objects match one of these; none: all do.
            exclude: Objects match none of these.
        """
        self.uri, self._store = store.uri, store
        self.read, self.checksum, self.find = store.read, store.checksum, store.find
        self.write, self.write_if, self.delete = store.write, store.write_if, store.delete
        self._wanted, self._unwanted = _any_of(include or ["*"]), _any_of(exclude)

    def list(self) -> Iterator[StoredObject]:
        is_empty, leaves_none = True, True
        for item in self._store.list():
            is_empty = False
            if self._wanted.fullmatch(item.key) and not self._unwanted.fullmatch(item.key):
                leaves_none = False
                yield item
        if leaves_none and not is_empty:
            raise StoreError(f"data.include and data.exclude leave no object of {self.uri}: correct the patterns")


def filtered(store: ObjectStore, include: Sequence[str], exclude: Sequence[str]) -> ObjectStore:
    return FilteredStore(store, include, exclude) if include or exclude else store


def _any_of(patterns: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)) or "(?!)")
