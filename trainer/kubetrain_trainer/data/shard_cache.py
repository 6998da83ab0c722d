"""The cache of a pod, into which a process beside the training fetches tar shards from the store.

<cache>/socket            takes requests, one JSON object a line, one in each connection
<cache>/<part>/<shard>    verified shards, which disappear when others need the space

Readers open a shard that is there without asking. Otherwise they ask for it: until they close the connection, in which
they have opened it, it does not disappear.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kubetrain_trainer.durable_files import read_json
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.sidecar import answered, connected, line_of

VARIABLE = "KUBETRAIN_SHARD_CACHE"
"""The environment variable with the folder of the cache."""
TRAINING, EVALUATION = "training", "evaluation"
PARTS = {TRAINING: 0.75, EVALUATION: 0.25}
"""The parts of the cache, as fractions of its size, so that a validation does not displace what is trained next."""
HINT_TIMEOUT_SECONDS = 1.0
"""Timeout of requests that the training can do without."""
STORED_SHARDS = "stored-shards.json"
"""The file of a dataset version that lists shards which were not copied to it, but stay in the store."""
STORED_SCHEMA = "kubetrain/stored-shards/v1"


class StoredShard(NamedTuple):
    """A shard in the store, as it was when the dataset was synced."""

    key: str
    size: int
    etag: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The name in the cache, which no other shard has, also none of another dataset."""
        return hashlib.sha256(json.dumps(self).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class ShardCache:
    folder: Path
    part: str

    def open(self, shard: StoredShard) -> int:
        """Return a descriptor of the shard, once it is in the cache.

        Raises:
            KubetrainError: if it cannot be fetched, or is not what was synced.
        """
        path = self.folder / self.part / shard.file_name
        while True:
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, os.O_RDONLY)
            with self._answer({"need": shard}), contextlib.suppress(FileNotFoundError):
                return os.open(path, os.O_RDONLY)

    def announce(self, shards: Iterable[StoredShard]) -> None:
        """Say which shards will be needed next. This may be lost: what is needed is asked for."""
        with contextlib.suppress(OSError), connected(self.folder, HINT_TIMEOUT_SECONDS) as connection:
            connection.sendall(line_of(self._request({"announce": list(shards)})))

    def counts(self) -> dict[str, int]:
        """Return how many shards were fetched, and how often one was not there when it was needed; empty if unknown."""
        with contextlib.suppress(OSError, ValueError), connected(self.folder, HINT_TIMEOUT_SECONDS) as connection:
            connection.sendall(line_of(self._request({"counts": True})))
            counts: dict[str, int] = json.loads(connection.makefile().readline())["counts"]
            return counts
        return {}

    def _answer(self, request: Mapping[str, Any]) -> AbstractContextManager[Mapping[str, Any]]:
        return answered(self.folder, self._request(request), "the shard cache")

    def _request(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"part": self.part, **request}


def stored_shards_json(shards: Iterable[StoredShard]) -> bytes:
    return json.dumps({"schema": STORED_SCHEMA, "shards": list(shards)}, separators=(",", ":")).encode() + b"\n"


def read_stored_shards(data_dir: Path) -> dict[str, StoredShard]:
    """Return the shards by key; none if the version has its shards.

    Raises:
        KubetrainError: if the file is damaged.
    """
    try:
        described = read_json(data_dir / STORED_SHARDS)
        if described["schema"] != STORED_SCHEMA:
            raise ValueError("unknown schema")
        return {shard.key: shard for shard in map(StoredShard._make, described["shards"])}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise KubetrainError(f"{data_dir / STORED_SHARDS} is damaged ({error}): sync again") from error


def cache_folder() -> Path:
    """
    Raises:
        KubetrainError: if nothing fetches shards for this process.
    """
    if folder := os.environ.get(VARIABLE):
        return Path(folder)
    raise KubetrainError(
        "the shards of this dataset version are still in S3: train on it by `kubetrain run` or `submit` with "
        "data.delivery=cache"
    )
