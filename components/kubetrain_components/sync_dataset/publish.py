"""Dataset versions on disk: a folder named by its digest always holds a complete version.

versions/<digest>/manifest.jsonl    a header line, then one line per object, sorted by UTF-8 key
versions/<digest>/data/<key>        the objects, mode 0444
versions/.<digest>.partial/         a version that is being synced, see partial_version
versions/.pruned-<digest>/          a version that is being deleted, see prune_versions
versions/.damaged-<digest>-<time>/  a version that lost files or whose manifest was edited, replaced by a new one
"""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubetrain_components.object_store.store import StoredObject
from kubetrain_components.sync_dataset.leftovers import move_aside
from kubetrain_components.sync_dataset.manifest import MANIFEST, Entry, file_size
from kubetrain_components.sync_dataset.partial_version import PartialVersion
from kubetrain_components.sync_dataset.plan import Reusable, SyncPlan, listing_sha256
from kubetrain_components.sync_dataset.space import delete_abandoned
from kubetrain_trainer.durable_files import flush_directory
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.training_output import utc_now

log = logging.getLogger(__name__)

SCHEMA = "kubetrain/dataset/v1"
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
    """Return True if the version is there with all of its files, whose sizes are compared but not their content."""
    version = read_version(staging / "versions" / plan.digest)
    if version is None or version.header["sha256"] != plan.sha256 or not version.has_intact_manifest():
        return False
    lost = _first_loss(str(version.data), plan.objects)
    if lost is not None:
        log.warning("%s is damaged (%s): making it again", version.path, lost)
    return lost is None


def _first_loss(data: str, objects: Iterable[StoredObject]) -> str | None:
    """Return a sentence about the first file that is not there with its size."""
    for each in objects:
        size = file_size(f"{data}/{each.key}")
        if size != each.size:
            return f"{each.key} is missing" if size is None else f"{each.key} has {size} bytes, not {each.size}"
    return None


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


def partial_path(staging: Path, plan: SyncPlan) -> Path:
    return staging / "versions" / f".{plan.digest}.partial"


def publish(staging: Path, plan: SyncPlan, checksums: Mapping[str, str]) -> None:
    """Write the manifest of a finished version and publish it, so that it survives a power cut."""
    partial, final = PartialVersion(partial_path(staging, plan)), staging / "versions" / plan.digest
    _write_manifest(partial.path / MANIFEST, plan, checksums)
    partial.delete_temporary_files()
    partial.flush()
    partial.delete_journal()  # only now, so that a sync killed in the minutes that flushing may take can be resumed
    if final.exists():
        move_aside(final)
    partial.path.rename(final)
    flush_directory(final.parent)
    delete_abandoned(staging, plan.dataset_uri)


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
