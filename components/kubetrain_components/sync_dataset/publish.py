"""Dataset versions on disk: a folder named by its digest always holds a complete version.

versions/<digest>/manifest.jsonl    a header line, then one line per object, sorted by UTF-8 key
versions/<digest>/data/<key>        the objects, mode 0444
versions/.<digest>.partial/         a version that is being synced, see partial_version
versions/.pruned-<digest>/          a version that is being deleted, see prune_versions
versions/.damaged-<digest>-<time>/  a version with a damaged manifest, replaced by a new one
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
    """The manifest of a version is not the one that was published."""


@dataclass(frozen=True)
class DatasetVersion:
    path: Path
    header: Mapping[str, Any]

    @property
    def data(self) -> Path:
        return self.path / "data"

    def has_intact_manifest(self) -> bool:
        """Return True if the manifest is the one that was published, without parsing it."""
        with (self.path / MANIFEST).open("rb") as file:
            next(file)
            return bool(hashlib.file_digest(file, "sha256").hexdigest() == self.header["lines_sha256"])

    def entries(self) -> Iterator[Entry]:
        """Read the manifest as a stream.

        Raises:
            DamagedManifest: at the first line that is not valid.
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
        """Return the objects of the listing that the version was made from.

        Raises:
            DamagedManifest: if the manifest was edited.
        """
        objects = [entry.object for entry in self.entries()]
        if listing_sha256(objects) != self.header["sha256"]:
            raise DamagedManifest(
                f"{self.path / MANIFEST} does not hash to its digest {self.header['digest']}: it was edited"
            )
        return objects


def read_version(path: Path) -> DatasetVersion | None:
    """Return the version in this folder, or None if it has no complete one."""
    try:
        with (path / MANIFEST).open("rb") as lines:
            header = json.loads(next(lines))
        is_complete = header["schema"] == SCHEMA and header["digest"] == path.name and (path / "data").is_dir()
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None
    return DatasetVersion(path, header) if is_complete and header.keys() >= HEADER else None


def published_versions(staging: Path) -> list[DatasetVersion]:
    """Return all versions, newest first."""
    folder = staging / "versions"
    if not folder.is_dir():
        return []
    versions = [version for path in folder.iterdir() if (version := read_version(path)) is not None]
    return sorted(versions, key=lambda version: str(version.header["created"]), reverse=True)


def is_published(staging: Path, plan: SyncPlan) -> bool:
    version = read_version(staging / "versions" / plan.digest)
    return version is not None and version.header["sha256"] == plan.sha256 and version.has_intact_manifest()


def find_reusable(staging: Path, objects: Iterable[StoredObject]) -> dict[str, Reusable]:
    """Return the published versions that have these objects, by key."""
    wanted, found = {each.key: each for each in objects}, dict[str, Reusable]()
    for version in published_versions(staging):
        if not wanted:
            break
        if not version.has_intact_manifest():
            log.warning("not reusing files of %s: its %s was edited", version.path, MANIFEST)
            continue
        for entry in version.entries():
            if wanted.get(entry.object.key) == entry.object:
                del wanted[entry.object.key]
                found[entry.object.key] = Reusable(version.path.name, entry.checksum)
    return found


def note_use(staging: Path, plan: SyncPlan) -> None:
    """Set the modification time of the version, which pruning reads as its last use."""
    with contextlib.suppress(PermissionError):  # the version belongs to another user
        os.utime(staging / "versions" / plan.digest)


@contextlib.contextmanager
def locked(staging: Path, *, wait: bool = True) -> Iterator[None]:
    """Run the block while no other sync uses the folder.

    Raises:
        KubetrainError: if another sync uses it and wait is False.
    """
    (staging / "versions").mkdir(parents=True, exist_ok=True)
    with (staging / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if not wait:
                raise KubetrainError(f"another sync is using {staging}: try again when it is done") from error
            log.warning("waiting for another sync of %s", staging)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def partial_path(staging: Path, plan: SyncPlan) -> Path:
    return staging / "versions" / f".{plan.digest}.partial"


def publish(staging: Path, plan: SyncPlan, checksums: Mapping[str, str]) -> None:
    """Write the manifest of a finished version and publish it, so that it survives a power cut."""
    partial, final = PartialVersion(partial_path(staging, plan)), staging / "versions" / plan.digest
    _write_manifest(partial.path / MANIFEST, plan, checksums)
    partial.remove_temporary_files()
    partial.flush()
    if final.exists():
        _move_aside(final)
    partial.path.rename(final)
    flush_directory(final.parent)
    # Unfinished versions of older listings; the lock guarantees that no sync uses them.
    for abandoned in partial_versions(staging):
        shutil.rmtree(abandoned.path, ignore_errors=True)


def _write_manifest(path: Path, plan: SyncPlan, checksums: Mapping[str, str]) -> None:
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
    log.warning("%s was damaged: moved it to %s and synced it again", damaged, aside)


def verify_version(version: DatasetVersion) -> list[str]:
    """Re-hash every file and return a sentence for each problem."""
    try:
        expected = {each.key for each in version.objects()}
    except DamagedManifest as error:
        return [str(error)]
    wrong = [problem for entry in version.entries() if (problem := entry.problem_in(version.data))]
    return wrong + [f"{key} is not in {MANIFEST}" for key in sorted(_files_in(version.data) - expected)]


def _files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}
