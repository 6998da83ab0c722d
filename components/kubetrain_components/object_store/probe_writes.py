"""Try a store's writes before hours of work depend on them."""

import secrets

from kubetrain_components.object_store.store import ObjectChanged, ObjectStore, StoreError

PREFIX = ".kubetrain-probe-"
CONDITIONS = {"If-None-Match": None, "If-Match": "0" * 32}
"""The ETag of a write whose condition does not hold, by the header that expresses it."""


def probe_writes(store: ObjectStore) -> str:
    """Write an object under a temporary key, replace it if its ETag matches, and delete it if that is permitted.

    Returns:
        What the store lacks, as a sentence; empty if it lacks nothing.

    Raises:
        StoreError: if an object cannot be written, replaced or read.
    """
    key = f"{PREFIX}{secrets.token_hex(8)}"
    try:
        lack = _lack_of(store, key)
    except StoreError:
        _what_stays(store, key)
        raise
    return "; ".join(filter(None, (lack, _what_stays(store, key))))


def _what_stays(store: ObjectStore, key: str) -> str:
    """Delete the object, which publishing never does, or say that it stays."""
    try:
        store.delete(key)
    except StoreError as error:
        return f"{key} stays in {store.uri}, where it may be written but not deleted ({error})"
    return ""


def _lack_of(store: ObjectStore, key: str) -> str:
    store.write_if(key, b"first", None)
    ignored = [header for header, etag in CONDITIONS.items() if _ignores(store, key, etag)]
    found = store.find(key)
    if found is None:
        raise StoreError(f"{store.uri} does not have {key} just after it was written: check the server, or its cache")
    store.write_if(key, b"last", found.etag)
    if store.read(key).read() != b"last":
        raise StoreError(f"{store.uri} returns old bytes of {key} just after a write: check the server, or its cache")
    if not ignored:
        return ""
    return (
        f"{store.uri} ignores {' and '.join(ignored)} of writes: of two runs that publish at the same time, "
        "the older one may become the latest; update the server, or publish one run at a time"
    )


def _ignores(store: ObjectStore, key: str, etag: str | None) -> bool:
    """Return True if the store replaces the object although the condition does not hold."""
    try:
        store.write_if(key, b"second", etag)
    except ObjectChanged:
        return False
    return True
