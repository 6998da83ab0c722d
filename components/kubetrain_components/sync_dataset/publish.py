"""Dataset versions on disk: a version is there whole, under its digest, or it is not there.

versions/<digest>/manifest.jsonl    a header line, then one line per object, by UTF-8 key
versions/<digest>/data/<key>        the objects, mode 0444
versions/.<digest>.partial/         being made; a file in it under its own name has been verified
"""

import contextlib
import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kubetrain_components.object_store.store import StoredObject
from kubetrain_components.sync_dataset.plan import SyncPlan, listing_sha256
from kubetrain_trainer.durable_files import CHUNK_BYTES, flush_directory, write_atomically
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.training_output import utc_now

SCHEMA = "kubetrain/dataset/v1"
MANIFEST = "manifest.jsonl"


@dataclass(frozen=True)
class DatasetVersion:
    path: Path
    header: Mapping[str, Any]

    @property
    def data(self) -> Path:
        return self.path / "data"

    def entries(self) -> Iterator[dict[str, Any]]:
        """The manifest's objects, read as a stream."""
        with (self.path / MANIFEST).open(encoding="utf-8") as lines:
            next(lines)
            for line in lines:
                yield json.loads(line)

    def objects(self) -> Iterator[StoredObject]:
        for entry in self.entries():
            yield StoredObject(entry["key"], entry["size"], entry["etag"])


def read_version(path: Path) -> DatasetVersion | None:
    """The version in this folder, or None where there is no complete one."""
    try:
        with (path / MANIFEST).open(encoding="utf-8") as lines:
            header = json.loads(next(lines))
        is_whole = header["schema"] == SCHEMA and header["digest"] == path.name and (path / "data").is_dir()
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None
    return DatasetVersion(path, header) if is_whole else None


def published_versions(staging: Path) -> list[DatasetVersion]:
    """Every version there, the newest first."""
    folder = staging / "versions"
    if not folder.is_dir():
        return []
    versions = [version for path in folder.iterdir() if (version := read_version(path)) is not None]
    return sorted(versions, key=lambda version: str(version.header["created"]), reverse=True)


@contextlib.contextmanager
def locked(staging: Path) -> Iterator[None]:
    """One sync at a time: a second waits for the first."""
    try:
        (staging / "versions").mkdir(parents=True, exist_ok=True)
        lock = (staging / ".lock").open("w")
    except OSError as error:
        raise KubetrainError(
            f"cannot write to {staging} ({error.strerror}): choose a directory that you may write"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def partial_path(staging: Path, plan: SyncPlan) -> Path:
    return staging / "versions" / f".{plan.digest}.partial"


def publish(staging: Path, plan: SyncPlan, checksums: Mapping[str, str]) -> DatasetVersion:
    """Describe the finished files and give the version its name."""
    partial, final = partial_path(staging, plan), staging / "versions" / plan.digest
    header = {
        "schema": SCHEMA,
        "source": plan.source,
        "digest": plan.digest,
        "sha256": plan.sha256,
        "objects": len(plan.objects),
        "bytes": plan.bytes,
        "created": utc_now(),
    }
    entries = ({**asdict(each), "checksum": checksums[each.key]} for each in plan.objects)
    lines = [json.dumps(line, ensure_ascii=False) + "\n" for line in (header, *entries)]
    write_atomically(partial / MANIFEST, "".join(lines).encode())
    (partial / MANIFEST).chmod(0o444)
    partial.rename(final)
    flush_directory(final.parent)
    _remove_partial(staging)
    return DatasetVersion(final, header)


def _remove_partial(staging: Path) -> None:
    """What syncs of older listings began and never finished: under the lock nobody is at them."""
    for path in (staging / "versions").glob(".*.partial"):
        shutil.rmtree(path, ignore_errors=True)


def verify_version(version: DatasetVersion) -> list[str]:
    """Hash every file anew; what is wrong, in sentences."""
    wrong = []
    if listing_sha256(version.objects()) != version.header["sha256"]:
        wrong.append(f"{MANIFEST} does not hash to its digest {version.header['digest']}: it was edited")
    expected = 0
    for entry in version.entries():
        expected += 1
        wrong += _problems_of(version.data / entry["key"], entry)
    if expected != version.header["objects"]:
        wrong.append(f"{MANIFEST} lists {expected} objects, not {version.header['objects']}")
    return wrong


def _problems_of(path: Path, entry: Mapping[str, Any]) -> list[str]:
    if not path.is_file():
        return [f"{entry['key']} is missing"]
    if path.stat().st_size != entry["size"]:
        return [f"{entry['key']} has {path.stat().st_size} bytes, not {entry['size']}"]
    if file_checksum(path) != entry["checksum"]:
        return [f"{entry['key']} is not the bytes that were synced"]
    return []


def file_checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"
