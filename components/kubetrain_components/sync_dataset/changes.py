"""The description of a change during a sync."""

from kubetrain_components.object_store.store import ObjectChanged, ObjectStore, StoredObject, StoreError
from kubetrain_components.sync_dataset.download import NotAsListed


def describe_change(store: ObjectStore, error: ObjectChanged) -> str:
    """Return what is known about the object that differs from its listing."""
    if not isinstance(error, NotAsListed):
        return str(error)
    wanted = error.wanted
    try:
        found = store.find(wanted.key)
    except StoreError as failure:
        return f"{error} (listed with ETag {wanted.etag!r}; asking for the present one failed: {failure})"
    return f"object {wanted.key!r} is listed with ETag {wanted.etag!r}, but {_present(wanted, found)}"


def _present(wanted: StoredObject, found: StoredObject | None) -> str:
    if found is None:
        return "does not exist (if it stays so, the store lists what it does not have: delete or upload the object)"
    if found.etag != wanted.etag:
        return f"has ETag {found.etag!r}"
    return "the store rejects requests for this ETag (does a proxy between you and the store change headers?)"
