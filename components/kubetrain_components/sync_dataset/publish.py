"""Dataset versions on disk: a version is there whole, under its digest, or it is not there.

versions/<digest>/manifest.jsonl    a header line, then one line per object, by UTF-8 key
versions/<digest>/data/<key>        the objects, mode 0444
versions/.<digest>.partial/         being made, see partial_version
versions/.pruned-<digest>/          being deleted, see prune_versions
versions/.damaged-<digest>-<time>/  could not be read when it was needed, so another was made in its place
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubetrain_components.object_store.store import StoredObject
from kubetrain_components.sync_dataset.manifest import Entry
from kubetrain_components.sync_dataset.partial_version import PartialVersion, partial_versions
from kubetrain_components.sync_dataset.plan import Reusable, SyncPlan, listing_sha256
from kubetrain_trainer.durable_files import flush_directory
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.training_output import utc_now

log = logging.getLogger(__name__)

SCHEMA = "kubetrain/dataset/v1"
MANIFEST = "manifest.jsonl"
HEADER = {"schema", "source", "digest", "sha256", "objects", "bytes", "created", "lines_sha256"}


class DamagedManifest(KubetrainError):
    """A version's manifest is not what was published."""


@dataclass(frozen=True)
class DatasetVersion:
    path: Path
    header: Mapping[str, Any]

    @property
    def data(self) -> Path:
        return self.path / "data"

    def is_described(self) -> bool:
        """Whether the manifest is the one that was published, found without parsing it."""
        with (self.path / MANIFEST).open("rb") as file:
            next(file)
            return bool(hashlib.file_digest(file, "sha256").hexdigest() == self.header["lines_sha256"])

    def entries(self) -> Iterator[Entry]:
        """The manifest's objects, read as a stream.

        Raises:
            DamagedManifest: naming the first line that is none.
        """
        with (self.path / MANIFEST).open("rb") as lines:
            next(lines)
            for number, line in enumerate(lines, start=2):
                try:
                    entry = Entry.from_line(line)
                except ValueError as error:
                    raise DamagedManifest(f"line {number} of {self.path / MANIFEST} is damaged") from error
                yield entry

    def objects(self) -> list[StoredObject]:
        """The objects of the listing that the version was made from.

        Raises:
            DamagedManifest: where the manifest does not say so any more.
        """
        objects = [entry.object for entry in self.entries()]
        if listing_sha256(objects) != self.header["sha256"]:
            raise DamagedManifest(
                f"{self.path / MANIFEST} does not hash to its digest {self.header['digest']}: it was edited"
            )
        return objects


def read_version(path: Path) -> DatasetVersion | None:
    """The version in this folder, or None where there is no complete one."""
    try:
        with (path / MANIFEST).open("rb") as lines:
            header = json.loads(next(lines))
        is_whole = header["schema"] == SCHEMA and header["digest"] == path.name and (path / "data").is_dir()
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None
    return DatasetVersion(path, header) if is_whole and header.keys() >= HEADER else None


def published_versions(staging: Path) -> list[DatasetVersion]:
    """Every version there, the newest first."""
    folder = staging / "versions"
    if not folder.is_dir():
        return []
    versions = [version for path in folder.iterdir() if (version := read_version(path)) is not None]
    return sorted(versions, key=lambda version: str(version.header["created"]), reverse=True)


def is_published(staging: Path, plan: SyncPlan) -> bool:
    version = read_version(staging / "versions" / plan.digest)
    return version is not None and version.header["sha256"] == plan.sha256 and version.is_described()


def find_reusable(staging: Path, objects: Iterable[StoredObject]) -> dict[str, Reusable]:
    """What versions there have of these objects, by key."""
    wanted, found = {each.key: each for each in objects}, dict[str, Reusable]()
    for version in published_versions(staging):
        if not wanted:
            break
        if not version.is_described():
            log.warning("reusing nothing of %s: its %s was edited", version.path, MANIFEST)
            continue
        for entry in version.entries():
            if wanted.get(entry.object.key) == entry.object:
                del wanted[entry.object.key]
                found[entry.object.key] = Reusable(version.path.name, entry.checksum)
    return found


def note_use(staging: Path, plan: SyncPlan) -> None:
    """By the folder's time, as pruning reads it; whoever may not set that took a version of somebody else."""
    with contextlib.suppress(PermissionError):
        os.utime(staging / "versions" / plan.digest)


@contextlib.contextmanager
def locked(staging: Path, *, waits: bool = True) -> Iterator[None]:
    """One sync at a time: a second waits for the first, where it may.

    Raises:
        KubetrainError: where it may not.
    """
    (staging / "versions").mkdir(parents=True, exist_ok=True)
    with (staging / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if not waits:
                raise KubetrainError(f"another sync is at {staging}: run this when it is done") from error
            log.warning("waiting for another sync of %s", staging)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def partial_path(staging: Path, plan: SyncPlan) -> Path:
    return staging / "versions" / f".{plan.digest}.partial"


def publish(staging: Path, plan: SyncPlan, checksums: Mapping[str, str]) -> None:
    """Describe the finished files and give the version its name; what is published survives a power cut."""
    partial, final = PartialVersion(partial_path(staging, plan)), staging / "versions" / plan.digest
    _write_manifest(partial.path / MANIFEST, plan, checksums)
    partial.end()
    partial.flush()
    if final.exists():
        _move_aside(final)
    partial.path.rename(final)
    flush_directory(final.parent)
    # What syncs of older listings began and never finished: under the lock nobody is at them.
    for abandoned in partial_versions(staging):
        shutil.rmtree(abandoned.path, ignore_errors=True)


def _write_manifest(path: Path, plan: SyncPlan, checksums: Mapping[str, str]) -> None:
    """Line by line: there may be millions."""
    hashed = hashlib.sha256()
    for line in _lines(plan, checksums):
        hashed.update(line)
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        file.write(json.dumps(_header(plan, hashed.hexdigest()), ensure_ascii=False).encode() + b"\n")
        file.writelines(_lines(plan, checksums))
    path.chmod(0o444)


def _header(plan: SyncPlan, lines_sha256: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "source": plan.dataset_uri,
        "digest": plan.digest,
        "sha256": plan.sha256,
        "objects": len(plan.objects),
        "bytes": plan.bytes,
        "created": utc_now(),
        "lines_sha256": lines_sha256,
    }


def _lines(plan: SyncPlan, checksums: Mapping[str, str]) -> Iterator[bytes]:
    return (Entry(each, checksums[each.key]).to_line() for each in plan.objects)


def _move_aside(damaged: Path) -> None:
    aside = damaged.with_name(f".damaged-{damaged.name}-{time.time_ns()}")
    damaged.rename(aside)
    log.warning("%s was damaged: it is made again, and what was there is now %s", damaged, aside)


def verify_version(version: DatasetVersion) -> list[str]:
    """Re-hash every file; what is wrong, in sentences."""
    try:
        described = {each.key for each in version.objects()}
    except DamagedManifest as error:
        return [str(error)]
    wrong = [problem for entry in version.entries() if (problem := entry.problem_in(version.data))]
    return wrong + [f"{key} is not in {MANIFEST}" for key in sorted(_files_in(version.data) - described)]


def _files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}
