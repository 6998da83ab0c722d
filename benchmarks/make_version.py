"""Publish the dataset as a version synced before: our own functions write its manifest, and its files are empty space.

python benchmarks/make_version.py OBJECTS DIRECTORY
"""

import hashlib
import os
import sys
from pathlib import Path

from dataset import BODY_SIZES, SOURCE, Dataset, bodies

from kubetrain_components.object_store.store import StoredObject
from kubetrain_components.sync_dataset.partial_version import PartialVersion
from kubetrain_components.sync_dataset.plan import plan_sync
from kubetrain_components.sync_dataset.publish import partial_path, publish


def make_version(dataset: Dataset, target: Path) -> None:
    plan = plan_sync(SOURCE, (_stored(dataset, number) for number in range(dataset.objects)))
    checksums = [f"sha256:{hashlib.sha256(body).hexdigest()}" for body in bodies()]
    partial = PartialVersion(partial_path(target, plan))
    with partial.opened(SOURCE):
        for each in plan.objects:
            _make_file(partial.data / each.key, each.size)
        publish(target, plan, ((each.key, checksums[_body(dataset.number_of(each.key))]) for each in plan.objects))


def _make_file(path: Path, size: int) -> None:
    """Make a file without blocks."""
    try:
        path.touch()
    except FileNotFoundError:
        path.parent.mkdir(parents=True)
        path.touch()
    os.truncate(path, size)


def _stored(dataset: Dataset, number: int) -> StoredObject:
    return StoredObject(dataset.key(number), dataset.body_size(number), dataset.etag(number))


def _body(number: int) -> int:
    return number % len(BODY_SIZES)


if __name__ == "__main__":
    make_version(Dataset(int(sys.argv[1])), Path(sys.argv[2]))
