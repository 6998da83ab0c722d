"""An unfinished version, whose files an interrupted sync leaves for the next one.

versions/.<digest>.partial/data/<key>       verified files, which a power cut may have damaged since
versions/.<digest>.partial/verified.jsonl   the journal: checksums of verified files, and of parts of large objects
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
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kubetrain_components.object_store.checksums import DEFAULT_ALGORITHM, checksum_of, combine_checksums
from kubetrain_components.object_store.store import StoredObject
from kubetrain_components.sync_dataset.manifest import Entry
from kubetrain_trainer.durable_files import CHUNK_BYTES

MODE = 0o444
FICLONE = 0x40049409
"""The ioctl that copies a file without using space until one of the copies changes, if the file system supports it."""
CANNOT_LINK = {errno.EPERM, errno.EACCES, errno.EMLINK, errno.EXDEV, errno.ENOTSUP, errno.ENOSYS}

Span = tuple[int, int]
"""Start and end (exclusive) of some bytes of an object."""


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
        self._journal = path / "verified.jsonl"
        self._unfinished = path / "unfinished"
        self._numbers = itertools.count()
        self._folders: set[str] = set()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Prepare the folders and open the journal; only one sync may do this at a time."""
        shutil.rmtree(self._unfinished, ignore_errors=True)
        for folder in (self._unfinished, self.large, self.data):
            folder.mkdir(parents=True, exist_ok=True)
        self._remove_links()
        with self._journal.open("ab", buffering=0) as self._recording:
            yield

    def ignores_case(self) -> bool:
        """Return True if the volume ignores the case of names, or the Unicode form of their accents."""
        probe = self._unfinished / "probe-\u00e9"
        probe.touch()
        found = any((self._unfinished / name).exists() for name in ("PROBE-\u00e9", "probe-e\u0301"))
        probe.unlink()
        return found

    def record_all(self, entries: Iterable[Entry]) -> None:
        """Add verified objects to the journal."""
        self._recording.write(b"".join(entry.to_line() for entry in entries))

    def record_part(self, entry: Entry, span: Span) -> None:
        self._recording.write(_part_line(entry, span))  # one write, because many threads do this

    def recorded(self) -> Iterator[Entry]:
        """Yield the verified objects of all intact lines of the journal."""
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

    def reuse(self, source: Path, key: str) -> str:
        """Add a file of another version; return how: linked, cloned or copied."""
        target = self._target(key)
        with suppress(FileNotFoundError):
            os.unlink(target)
        try:
            os.link(source, target, follow_symlinks=False)
            return "linked"
        except OSError as error:
            if error.errno not in CANNOT_LINK:
                raise
        with self.new_file(key) as copy, source.open("rb") as original:
            method = _copy(original.fileno(), copy.descriptor)
            copy.is_complete = True
        return method

    def large_object(self, wanted: StoredObject, part_bytes: int) -> "LargeObject":
        """Return a large object with the intact parts that an interrupted sync left."""
        name = hashlib.sha256(f"{wanted.key}\0{wanted.etag}".encode()).hexdigest()
        large = LargeObject(wanted, self.large / name, part_bytes)
        if large.path.is_file():
            for span, checksum in self._recorded_parts.get(wanted, ()):
                if checksum_of(large.path, DEFAULT_ALGORITHM, *span) == checksum:
                    large.add_part(span, checksum)
        else:
            large.path.touch()
        os.truncate(large.path, wanted.size)
        return large

    def flush(self) -> None:
        """Flush all files to disk with one call for the file system instead of one for each file."""
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "syncfs"):
            os.sync()  # not first choice: it flushes every file system and reports no errors
            return
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            if libc.syncfs(descriptor) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(self.path))
        finally:
            os.close(descriptor)

    def remove_temporary_files(self) -> None:
        for folder in (self._unfinished, self.large):
            shutil.rmtree(folder)
        self._journal.unlink(missing_ok=True)

    def _lines(self, *, of_parts: bool) -> Iterator[bytes]:
        if self._journal.is_file():
            with self._journal.open("rb") as lines:
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


class LargeObject:
    """An object that arrives in parts, which are written to one file."""

    def __init__(self, wanted: StoredObject, path: Path, part_bytes: int) -> None:
        self.object = wanted
        self.path = path
        self._spans = [(start, min(start + part_bytes, wanted.size)) for start in range(0, wanted.size, part_bytes)]
        self._checksums: dict[Span, str] = {}
        self._lock = threading.Lock()

    @property
    def missing_spans(self) -> list[Span]:
        return [span for span in self._spans if span not in self._checksums]

    def add_part(self, span: Span, checksum: str) -> bool:
        """Record a part that arrived; return True if it completes the object."""
        with self._lock:
            self._checksums[span] = checksum
            return not self.missing_spans

    def combined_checksum(self) -> str:
        return combine_checksums((self._checksums[start, end], end - start) for start, end in self._spans)

    def discard(self) -> None:
        self.path.unlink()


def partial_versions(staging: Path) -> list[PartialVersion]:
    return [PartialVersion(path) for path in sorted((staging / "versions").glob(".*.partial"))]


def _part_line(entry: Entry, span: Span) -> bytes:
    return entry.to_line().removesuffix(b"}\n") + f', "part": [{span[0]}, {span[1]}]}}\n'.encode()


def _copy(source: int, target: int) -> str:
    try:
        fcntl.ioctl(target, FICLONE, source)
        return "cloned"
    except OSError:
        while chunk := os.read(source, CHUNK_BYTES):
            os.write(target, chunk)
        return "copied"
