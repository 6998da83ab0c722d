"""Dataset versions on disk: a folder named by its digest always holds a complete version.

versions/<digest>/manifest.jsonl    a header line, then one line per object, sorted by UTF-8 key
versions/<digest>/data/<key>        the objects, mode 0444
versions/.<digest>.partial/         a version that is being synced, see partial_version
versions/.pruned-<digest>-<time>/   a version that is being deleted, see prune_versions
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
from typing import Any, NamedTuple

from kubetrain_components.object_store.store import StoredObject
from kubetrain_components.sync_dataset.leftovers import delete_abandoned, move_aside
from kubetrain_components.sync_dataset.manifest import MANIFEST, Entry, file_size
from kubetrain_components.sync_dataset.partial_version import GONE, PartialVersion
from kubetrain_components.sync_dataset.plan import SyncPlan, listing_sha256
from kubetrain_trainer.durable_files import flush_directory
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.failures import describe_os_error
from kubetrain_trainer.output.training_output import utc_now

log = logging.getLogger(__name__)

SCHEMA = "kubetrain/dataset/v1"
ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
HEADER = {"schema", "source", "digest", "sha256", "objects", "bytes", "created", "lines_sha256"}


class DamagedManifest(KubetrainError):
    """The manifest of a version is not the one that was published."""


class UnreadableVersion(KubetrainError):
    """Nobody can tell if the version is complete, because its files cannot be read."""


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

    def check_manifest(self) -> None:
        """
        Raises:
            DamagedManifest: if it is not that of the listing that the version was made from, or was edited since.
        """
        count = size = 0

        def counted() -> Iterator[StoredObject]:
            nonlocal count, size
            for entry in self.entries():
                count, size = count + 1, size + entry.object.size
                yield entry.object

        if listing_sha256(counted()) != self.header["sha256"]:
            raise self._edited(f"does not hash to its digest {self.header['digest']}")
        if not self.has_intact_manifest():
            raise self._edited("has lines that do not hash to the lines_sha256 in its header")
        if (count, size) != (self.header["objects"], self.header["bytes"]):
            raise self._edited(f"has {count} objects with {size} bytes, but its header differs")

    def _edited(self, evidence: str) -> DamagedManifest:
        return DamagedManifest(f"{self.path / MANIFEST} {evidence}: it was edited")


def read_version(path: Path) -> DatasetVersion | None:
    """Return the version in this folder, or None if it has no complete one.

    Raises:
        UnreadableVersion: if a file cannot be read, which does not mean that it is damaged.
    """
    try:
        with (path / MANIFEST).open("rb") as lines:
            header = json.loads(next(lines))
        is_complete = header["schema"] == SCHEMA and header["digest"] == path.name and (path / "data").is_dir()
    except (*ABSENT, ValueError, KeyError, TypeError, StopIteration):
        return None
    except OSError as error:
        raise UnreadableVersion(f"cannot read {path / MANIFEST} {describe_os_error(error)}") from error
    return DatasetVersion(path, header) if is_complete and header.keys() >= HEADER else None


def published_versions(staging: Path) -> list[DatasetVersion]:
    """Return all versions that can be read, newest first."""
    folder = staging / "versions"
    if not folder.is_dir():
        return []
    paths = (path for path in folder.iterdir() if not path.name.startswith("."))
    versions = [version for path in paths if (version := _read_if_possible(path)) is not None]
    return sorted(versions, key=lambda version: str(version.header["created"]), reverse=True)


def _read_if_possible(path: Path) -> DatasetVersion | None:
    try:
        return read_version(path)
    except UnreadableVersion as error:
        log.warning("not using files of %s: %s", path, error)
        return None


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
    for item in objects:
        size = file_size(f"{data}/{item.key}")
        if size != item.size:
            return f"{item.key} is missing" if size is None else f"{item.key} has {size} bytes, not {item.size}"
    return None


class Reusable(NamedTuple):
    """The version that already has an object, and its checksum there."""

    version: str
    checksum: str


Reuse = Iterator[tuple[StoredObject, Reusable | None]]


def find_reusable(staging: Path, objects: Iterable[StoredObject]) -> Reuse:
    """Yield each object with the newest published version that has it."""
    found: Reuse = ((item, None) for item in objects)
    for version in published_versions(staging):
        with _until_gone():
            if version.has_intact_manifest():
                found = _with_version(found, version)
            else:
                log.warning("not reusing files of %s: its %s was edited", version.path, MANIFEST)
    return found


def _with_version(found: Reuse, version: DatasetVersion) -> Reuse:
    """Yield what an older version has in addition; manifests are sorted like the objects."""
    entries = _entries_until_gone(version)
    entry = next(entries, None)
    for each, reusable in found:
        while entry is not None and entry.object.key < each.key:
            entry = next(entries, None)
        if reusable is None and entry is not None and entry.object == each:
            yield each, Reusable(version.path.name, entry.checksum)
        else:
            yield each, reusable


def _entries_until_gone(version: DatasetVersion) -> Iterator[Entry]:
    with _until_gone():
        yield from version.entries()


@contextlib.contextmanager
def _until_gone() -> Iterator[None]:
    """Stop reading a version without an error when pruning deletes it."""
    try:
        yield
    except OSError as error:
        if error.errno not in GONE:
            raise


def note_use(staging: Path, plan: SyncPlan) -> None:
    """Set the modification time of the version, which pruning reads as its last use."""
    with contextlib.suppress(PermissionError):  # the version belongs to another user
        os.utime(staging / "versions" / plan.digest)


def partial_path(staging: Path, plan: SyncPlan) -> Path:
    return staging / "versions" / f".{plan.digest}.partial"


def publish(staging: Path, plan: SyncPlan, partial: PartialVersion, checksums: Iterable[tuple[str, str]]) -> None:
    """Write the manifest of a finished version and publish it, so that it survives a power cut.

    Args:
        checksums: Keys and checksums, sorted by key.
    """
    final = staging / "versions" / plan.digest
    _write_manifest(partial.path / MANIFEST, plan, checksums)
    partial.delete_temporary_files()
    partial.flush()
    partial.delete_journal()  # only now, so that a sync killed in the minutes that flushing may take can be resumed
    if final.exists():
        move_aside(final)
    partial.path.rename(final)
    flush_directory(final.parent)
    delete_abandoned(staging, plan.dataset_uri)


def _write_manifest(path: Path, plan: SyncPlan, checksums: Iterable[tuple[str, str]]) -> None:
    path.unlink(missing_ok=True)
    hashed, header = hashlib.sha256(), _header(plan)
    with path.open("xb") as file:
        file.write(_header_line(header, hashed.hexdigest()))
        for line in _lines(plan, checksums):
            hashed.update(line)
            file.write(line)
        file.seek(0)
        file.write(_header_line(header, hashed.hexdigest()))  # as long as before
    path.chmod(0o444)


def _header_line(header: Mapping[str, Any], lines_sha256: str) -> bytes:
    return json.dumps({**header, "lines_sha256": lines_sha256}, ensure_ascii=False).encode() + b"\n"


def _header(plan: SyncPlan) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "source": plan.dataset_uri,
        "digest": plan.digest,
        "sha256": plan.sha256,
        "objects": len(plan.objects),
        "bytes": plan.bytes,
        "created": utc_now(),
    }


def _lines(plan: SyncPlan, checksums: Iterable[tuple[str, str]]) -> Iterator[bytes]:
    for each, (key, checksum) in zip(plan.objects, checksums, strict=True):
        assert key == each.key, "every object has one checksum"
        yield Entry(each, checksum).to_line()
