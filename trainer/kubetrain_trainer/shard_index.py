"""The positions of the images in a tar shard, stored by `kubetrain pack` so that readers need not scan the archive."""

import json
from array import array
from dataclasses import dataclass, field
from functools import partial
from operator import add
from pathlib import Path
from typing import Any, Self

from kubetrain_trainer.durable_files import read_json
from kubetrain_trainer.errors import KubetrainError

SCHEMA = "kubetrain/shard-index/v1"


@dataclass(frozen=True)
class ShardIndex:
    """The samples of one or several shards, in arrays because there may be millions."""

    offsets: "array[int]" = field(default_factory=partial(array, "q"))
    sizes: "array[int]" = field(default_factory=partial(array, "q"))
    labels: "array[int]" = field(default_factory=partial(array, "i"))

    def __len__(self) -> int:
        return len(self.labels)

    def add(self, offset: int, size: int, label: int) -> None:
        self.offsets.append(offset)
        self.sizes.append(size)
        self.labels.append(label)

    def extend(self, other: Self) -> None:
        self.offsets.extend(other.offsets)
        self.sizes.extend(other.sizes)
        self.labels.extend(other.labels)

    def to_json(self, shard_size: int) -> bytes:
        """Return the index as JSON with the size of the shard, so that readers detect an index of another shard."""
        columns = {name: values.tolist() for name, values in vars(self).items()}
        described = {"schema": SCHEMA, "shard_size": shard_size, **columns}
        return json.dumps(described, separators=(",", ":"), sort_keys=True).encode() + b"\n"


def index_path(shard: Path) -> Path:
    return shard.with_suffix(".index.json")


def read_index(shard: Path, size: int | None = None) -> ShardIndex | None:
    """Return the index beside a shard, or None if it has none.

    Args:
        size: The size of the shard, if it is not there itself.

    Raises:
        KubetrainError: if the index is damaged or belongs to another shard.
    """
    path = index_path(shard)
    try:
        described = read_json(path)
        index = _from_columns(described)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise KubetrainError(f"{path} is damaged: sync or pack again") from error
    size = shard.stat().st_size if size is None else size
    if described.get("shard_size") != size or max(map(add, index.offsets, index.sizes), default=0) > size:
        raise KubetrainError(
            f"{shard} has {size} bytes and is not the shard that {path.name} describes: sync or pack again"
        )
    return index


def _from_columns(described: Any) -> ShardIndex:
    index = ShardIndex()
    for name, values in vars(index).items():
        values.fromlist(described[name])
    if described["schema"] != SCHEMA or not len(index.offsets) == len(index.sizes) == len(index.labels):
        raise ValueError("not an index")
    return index
