"""The file of a dataset version that lists shards which were not copied to it, but stay in the store."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from kubetrain_trainer.durable_files import read_json
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.shard_cache import VARIABLE, StoredShard

NAME = "stored-shards.json"
SCHEMA = "kubetrain/stored-shards/v1"


def to_json(shards: Iterable[StoredShard]) -> bytes:
    return json.dumps({"schema": SCHEMA, "shards": list(shards)}, separators=(",", ":")).encode() + b"\n"


def read_stored_shards(data_dir: Path) -> dict[str, StoredShard]:
    """Return the shards by key; none if the version has its shards.

    Raises:
        KubetrainError: if the file is damaged.
    """
    try:
        described = read_json(data_dir / NAME)
        if described["schema"] != SCHEMA:
            raise ValueError("unknown schema")
        return {shard.key: shard for shard in map(StoredShard._make, described["shards"])}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise KubetrainError(f"{data_dir / NAME} is damaged ({error}): sync again") from error


def cache_folder() -> Path:
    """
    Raises:
        KubetrainError: if nothing fetches shards for this process.
    """
    if folder := os.environ.get(VARIABLE):
        return Path(folder)
    raise KubetrainError(
        "the shards of this dataset version are still in S3: train on it by `kubetrain run` or `submit` with "
        "data_access=cache"
    )
