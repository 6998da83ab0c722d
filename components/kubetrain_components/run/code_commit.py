"""The git commit of an archive of code. It lies beside it: the same files must have the same digest in every commit."""

from kubetrain_components.object_store.store import ObjectStore


def write_commit(store: ObjectStore, digest: str, commit: str) -> None:
    store.write(_key(digest), commit.encode())


def read_commit(store: ObjectStore, digest: str) -> str:
    """Return the commit; empty if it is unknown."""
    is_known = digest and store.find(_key(digest))
    return store.read(_key(digest)).read().decode() if is_known else ""


def _key(digest: str) -> str:
    return f".code/{digest}.commit"
