"""The digits in small shards, and the version of a dataset that leaves them in the store."""

from collections.abc import Iterator
from pathlib import Path

from kubetrain_components.object_store.store import ObjectStore
from kubetrain_components.pack_dataset.pack import write_pack
from kubetrain_components.pack_dataset.plan import plan_pack
from kubetrain_components.sync_dataset.shards_in_store import ShardsInStore
from kubetrain_components.sync_dataset.transfer import transfer_dataset

SHARD_BYTES = 20_000


def packed_files(digits: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Pack the digits, and yield keys and files."""
    write_pack(plan_pack(digits, folder, SHARD_BYTES))
    for path in (path for path in folder.rglob("*") if path.is_file()):
        yield path.relative_to(folder).as_posix(), path


def synced(store: ObjectStore, staging: Path, cache_bytes: int) -> Path:
    """Return the data of a version."""
    digest = transfer_dataset(ShardsInStore(store, cache_bytes), staging).digest
    return staging / "versions" / digest / "data"
