"""Compare an epoch on shards in S3, read through a cache smaller than they are, with one on the same shards on disk.

python benchmarks/trainers/cached_shards.py [--images 2000 --rounds 3 --directory DIR]

One process trains a small model at 16 pixels, for which reading and decoding are most of the work. The S3 server runs
on the same machine.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from images import write_images
from launches import our_rate, our_training, run_together

from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.store import ObjectStore
from kubetrain_components.pack_dataset.pack import write_pack
from kubetrain_components.pack_dataset.plan import plan_pack
from kubetrain_components.serve_shards.serve import serving
from kubetrain_components.sync_dataset.shards_in_store import ShardsInStore
from kubetrain_components.sync_dataset.transfer import transfer_dataset
from kubetrain_pipelines.local_run.embedded_s3 import CREDENTIALS, embedded_s3
from kubetrain_trainer.data.shard_cache import TRAINING, VARIABLE, ShardCache, read_stored_shards

SHARD_BYTES = 1_000_000
CACHE_GB = 0.03
SETTINGS = {"model": "digits_cnn", "image_size": 16, "data": "tar_shards", "epochs": 1, "log_every": 1}
QUIET = {"checkpoint_every": 100_000, "metrics_port": 0, "loader_workers": 1}
CACHED = {"data_access": "cache", "cache_gb": CACHE_GB}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="folder for shards and cache, on the disk to measure")
    arguments = parser.parse_args()
    os.environ |= CREDENTIALS
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        folder = Path(name)
        write_images(folder / "images", arguments.images)
        write_pack(plan_pack(folder / "images", folder / "buckets" / "shards", SHARD_BYTES))
        buckets = {"shards": folder / "buckets" / "shards"}
        with embedded_s3(os.environ, folder / "s3.log", buckets) as server:
            compare(open_store("s3://shards", server.url), folder, arguments.rounds)


def compare(store: ObjectStore, folder: Path, rounds: int) -> None:
    digest = transfer_dataset(ShardsInStore(store, int(CACHE_GB * 1e9)), folder / "staging").digest
    version = folder / "staging" / "versions" / digest / "data"
    os.environ[VARIABLE] = str(folder / "cache")
    print(f"fetched alone: {fetched(store, version, folder / 'cache'):.0f} MB/s")
    rates: dict[str, list[float]] = {"disk": [], "cache": []}
    for _ in range(rounds):
        rates["disk"].append(trained(folder, folder / "buckets" / "shards", {}))
        with serving(store, folder / "cache", int(CACHE_GB * 1e9)):
            rates["cache"].append(trained(folder, version, CACHED))
    disk, cache = (statistics.median(each) for each in rates.values())
    print(f"images/s: {rates}; medians {disk:.1f} from disk, {cache:.1f} through the cache, ratio {cache / disk:.2f}")


def trained(folder: Path, data: Path, changes: dict[str, Any]) -> float:
    """Return the images per second of an epoch."""
    run_together(our_training("pytorch", {**SETTINGS, **QUIET, **changes}, folder / "output", data))
    return our_rate(folder / "output")


def fetched(store: ObjectStore, version: Path, folder: Path) -> float:
    """Return the rate at which the cache fetches shards that nobody reads, in MB/s."""
    shards = [shard for key, shard in read_stored_shards(version).items() if key.startswith("train/")]
    cache = ShardCache(folder, TRAINING)
    with serving(store, folder, int(CACHE_GB * 1e9)):
        began = time.perf_counter()
        cache.announce(shards)
        while cache.counts()["shards_fetched"] < len(shards):
            time.sleep(0.01)
        return sum(shard.size for shard in shards) / (time.perf_counter() - began) / 1e6


if __name__ == "__main__":
    main()
