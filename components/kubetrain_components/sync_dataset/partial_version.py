"""An unfinished version, whose files an interrupted sync leaves for the next one.

versions/.<digest>.partial/data/<key>       verified files, which a power cut may have damaged since
versions/.<digest>.partial/source           the URI of the dataset
versions/.<digest>.partial/verified.jsonl   the journal: checksums of verified files, and of parts of large objects
versions/.<digest>.partial/damaged          there if objects that differ from their ETags turned out to be damaged
versions/.<digest>.partial/large/           large objects, which arrive in parts
versions/.<digest>.partial/unfinished/      other files that are being written
"""

import ctypes
import errno
import fcntl
import hashlib
import itertools
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kubetrain_components.object_store.checksums import HASHERS, algorithm_of, format_checksum
from kubetrain_components.object_store.store import StoredObject
from kubetrain_components.sync_dataset.large_object import LargeObject, Span
from kubetrain_components.sync_dataset.manifest import MANIFEST, Entry, file_size
from kubetrain_trainer.durable_files import CHUNK_BYTES, forget_cached, write_at

FICLONE = 0x40049409
"""The ioctl that copies a file without using space until one of the copies changes, if the file system supports it."""

MODE = 0o444
GONE = {errno.ENOENT, errno.ESTALE}
"""Errors for a file that another program deleted; NFS may raise ESTALE."""
CANNOT_LINK = {errno.EPERM, errno.EACCES, errno.EMLINK, errno.EXDEV, errno.ENOTSUP, errno.ENOSYS}


@dataclass
class NewFile:
    descriptor: int
    is_complete: bool = False


class PartialVersion:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "data"
        self._data = str(self.data)
        self.large = path / "large"
        self.digest = path.name.removeprefix(".").removesuffix(".partial")
        self._source = path / "source"
        self._journal = path / "verified.jsonl"
        self._damaged = path / "damaged"
        self._unfinished = path / "unfinished"
        self._numbers = itertools.count()
        self._folders: set[str] = set()

    @contextmanager
    def opened(self, source: str) -> Iterator[None]:
        """Prepare the folders and open the journal; only one sync may do this at a time."""
        self._remove_links()
        shutil.rmtree(self._unfinished, ignore_errors=True)
        for folder in (self._unfinished, self.large, self.data):
            folder.mkdir(parents=True, exist_ok=True)
        # Opened before anything is written: it is not told of errors that another sync was told of before.
        self._volume = os.open(self.path, os.O_RDONLY)
        try:
            self._source.write_text(source, encoding="utf-8", errors="surrogateescape")
            with self._journal.open("ab", buffering=0) as self._recording:
                yield
        finally:
            os.close(self._volume)

    def is_from(self, source: str) -> bool:
        """Return True if the dataset has this URI, or an unknown one: the sync was killed as it began."""
        try:
            found = self._source.read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            return True
        return found.rstrip("/") == source.rstrip("/")

    def has_journal(self) -> bool:
        """Return True if an interrupted sync recorded files whose writes may not have reached the disk."""
        return self._journal.is_file() and self._journal.stat().st_size > 0

    def last_used(self) -> float:
        """Return the time of the last change to the journal, in seconds since the epoch."""
        paths = (path for path in (self._journal, self.path) if path.exists())
        return max((path.stat().st_mtime for path in paths), default=0.0)

    def stored_bytes(self) -> int:
        """Return the bytes on disk of the files and of the parts of large objects."""
        files = (path.lstat() for folder in (self.data, self.large) for path in folder.rglob("*") if path.is_file())
        return sum(min(file.st_size, file.st_blocks * 512) for file in files)

    def ignores_case(self) -> bool:
        """Return True if the volume ignores the case of names, or the Unicode form of their accents."""
        return self.is_one_file("probe-\u00e9", "PROBE-\u00e9") or self.is_one_file("probe-\u00e9", "probe-e\u0301")

    def is_one_file(self, name: str, other: str) -> bool:
        """Return True if the volume takes both names for the same file."""
        probe = self._unfinished / name
        probe.touch()
        found = (self._unfinished / other).exists()
        probe.unlink()
        return found

    def record_all(self, entries: Iterable[Entry]) -> None:
        """Add verified objects to the journal."""
        self._recording.write(b"".join(entry.to_line() for entry in entries))

    def record_part(self, entry: Entry, span: Span) -> None:
        self._recording.write(_part_line(entry, span))  # one write, because many threads do this

    def recorded(self) -> Iterator[Entry]:
        """Yield the verified objects of all intact lines of the journal, and of a manifest that was not published."""
        for line in self._lines(of_parts=False):
            with suppress(ValueError):
                yield Entry.from_line(line)

    @cached_property
    def _recorded_parts(self) -> dict[StoredObject, list[tuple[Span, str]]]:
        """The verified parts of large objects, read from the journal once."""
        parts = defaultdict[StoredObject, list[tuple[Span, str]]](list)
        for line in self._lines(of_parts=True):
            with suppress(ValueError):
                entry = Entry.from_line(line)
                start, end = json.loads(line)["part"]
                parts[entry.object].append(((start, end), entry.checksum))
        return parts

    @contextmanager
    def new_file(self, key: str) -> Iterator[NewFile]:
        """Create a file that is moved into place if the block sets is_complete, and deleted otherwise."""
        path = f"{self._unfinished}/{next(self._numbers)}"
        file = NewFile(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, MODE))
        try:
            yield file
        finally:
            os.close(file.descriptor)
            if not file.is_complete:
                os.unlink(path)
        if file.is_complete:
            self.move_into_place(path, key)

    def move_into_place(self, path: str | Path, key: str) -> None:
        os.chmod(path, MODE)
        os.rename(path, self._target(key))

    def note_damage(self) -> None:
        """Let later syncs download objects that differ from their ETags: other versions have the damaged bytes."""
        self._damaged.touch()

    def may_reuse(self, entry: Entry) -> bool:
        return entry.has_md5_etag is not False or not self._damaged.exists()

    def discard(self, key: str) -> None:
        os.unlink(self._target(key))

    def reuse(self, source: str, entry: Entry) -> str | None:
        """Add a file of another version; return how (linked, cloned or copied), or None if it may be damaged."""
        if not self.may_reuse(entry):
            return None
        target, size = self._target(entry.object.key), entry.object.size
        with suppress(FileNotFoundError):
            os.unlink(target)
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError as error:
            if error.errno in GONE:
                return None
            if error.errno not in CANNOT_LINK:
                raise
            return self._copy_unless_gone(source, entry)
        if file_size(target) == size:
            return "linked"
        os.unlink(target)
        return None

    def _copy_unless_gone(self, source: str, entry: Entry) -> str | None:
        try:
            return self._copy(source, entry)
        except OSError as error:
            if error.errno not in GONE:
                raise
            return None

    def _copy(self, source: str, entry: Entry) -> str | None:
        if file_size(source) != entry.object.size:
            return None
        with self.new_file(entry.object.key) as copy, open(source, "rb") as original:
            descriptors = original.fileno(), copy.descriptor
            method = "cloned" if clone_file(*descriptors) else "copied"
            copy.is_complete = method == "cloned" or copy_file(*descriptors, entry.checksum)
        return method if copy.is_complete else None

    def large_object(self, wanted: StoredObject, part_bytes: int) -> LargeObject:
        """Return a large object, whose file may have parts that an interrupted sync downloaded."""
        name = hashlib.sha256(f"{wanted.key}\0{wanted.etag}".encode()).hexdigest()
        path = self.large / name
        recorded = dict(self._recorded_parts.get(wanted, ())) if path.is_file() else {}
        if recorded:
            with path.open("rb") as file:
                forget_cached(file.fileno())
        return LargeObject(wanted, path, part_bytes, recorded)

    def flush(self) -> None:
        """Flush all files to disk with one call for the file system instead of one for each file.

        If that fails, delete them: the kernel drops what it could not write, but still shows it to readers.
        """
        try:
            _sync_file_system(self._volume)
        except OSError as error:
            shutil.rmtree(self.path, ignore_errors=True)
            error.filename = str(self.path)
            raise

    def settle(self) -> None:
        """Let the kernel write what an interrupted sync left, so that its files can be read back from the disk."""
        with suppress(OSError):  # what was lost is missed when the files are hashed
            _sync_file_system(self._volume)

    def delete_temporary_files(self) -> None:
        for folder in (self._unfinished, self.large):
            shutil.rmtree(folder)

    def delete_journal(self) -> None:
        """Delete what only a resumed sync needs; the manifest has the same lines."""
        self._recording.close()  # NFS keeps an open file under another name
        for path in (self._journal, self._source, self._damaged):
            path.unlink(missing_ok=True)

    def _lines(self, *, of_parts: bool) -> Iterator[bytes]:
        for path in (self._journal, self.path / MANIFEST):
            if path.is_file():
                with path.open("rb") as lines:
                    yield from (line for line in lines if (b'"part":' in line) == of_parts)

    def _target(self, key: str) -> str:
        folder = key.rpartition("/")[0]
        if folder not in self._folders:
            (self.data / folder).mkdir(parents=True, exist_ok=True)
            self._folders.add(folder)
        return f"{self._data}/{key}"

    def _remove_links(self) -> None:
        """Delete links: a link that someone put here would make the sync write elsewhere."""
        for folder, subfolders, names in os.walk(self.path):
            for path in (Path(folder, name) for name in (*subfolders, *names)):
                if path.is_symlink():
                    path.unlink()


def _sync_file_system(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        os.sync()  # not first choice: it flushes every file system and reports no errors
    elif libc.syncfs(descriptor) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def partial_versions(staging: Path) -> list[PartialVersion]:
    return [PartialVersion(path) for path in sorted((staging / "versions").glob(".*.partial"))]


def _part_line(entry: Entry, span: Span) -> bytes:
    return entry.to_line().removesuffix(b"}\n") + f', "part": [{span[0]}, {span[1]}]}}\n'.encode()


def clone_file(source: int, target: int) -> bool:
    """Let both files share their blocks; return False if the file system cannot."""
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError:
        return False
    return True


def copy_file(source: int, target: int, checksum: str) -> bool:
    """Copy all bytes; return False if they do not have this checksum."""
    algorithm, at = algorithm_of(checksum), 0
    hasher = HASHERS[algorithm]()
    while chunk := os.read(source, CHUNK_BYTES):
        hasher.update(chunk)
        at = write_at(target, chunk, at)
    return format_checksum(algorithm, hasher) == checksum
