"""A version while it is being made, and what is left of it where that was interrupted.

versions/.<digest>.partial/data/<key>       has its name since its bytes were verified ...
versions/.<digest>.partial/verified.jsonl   ... to these hashes: a power cut may have torn it since
versions/.<digest>.partial/large/           objects that arrive in parts; the journal tells of those that are there
versions/.<digest>.partial/unfinished/      files without a name yet
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

from kubetrain_components.object_store.checksums import OWN, checksum_of, joined
from kubetrain_components.object_store.store import StoredObject
from kubetrain_components.sync_dataset.manifest import Entry
from kubetrain_trainer.durable_files import CHUNK_BYTES

MODE = 0o444
SHARE_BLOCKS = 0x40049409
"""FICLONE: a copy that takes no space until one of both changes, where the file system can."""
CANNOT_LINK = {errno.EPERM, errno.EACCES, errno.EMLINK, errno.EXDEV, errno.ENOTSUP, errno.ENOSYS}

Span = tuple[int, int]
"""From a byte of an object up to, without, another."""


@dataclass
class NewFile:
    descriptor: int
    is_good: bool = False
    """It may have its name."""


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
    def begun(self) -> Iterator[None]:
        """For a sync that is the only one at it."""
        shutil.rmtree(self._unfinished, ignore_errors=True)
        for folder in (self._unfinished, self.large, self.data):
            folder.mkdir(parents=True, exist_ok=True)
        self._remove_links()
        with self._journal.open("ab", buffering=0) as self._recording:
            yield

    def takes_names_for_one_another(self) -> bool:
        """Whether the volume ignores case, or how accents are composed."""
        probe = self._unfinished / "probe-\u00e9"
        probe.touch()
        twins = ("PROBE-\u00e9", "probe-e\u0301")
        found = any((self._unfinished / twin).exists() for twin in twins)
        probe.unlink()
        return found

    def record_all(self, entries: Iterable[Entry]) -> None:
        """Remember what was verified."""
        self._recording.write(b"".join(entry.to_line() for entry in entries))

    def record_part(self, entry: Entry, span: Span) -> None:
        self._recording.write(_part_line(entry, span))  # by many threads: each line is one write

    def recorded(self) -> Iterator[Entry]:
        """What was verified, as far as the journal survived."""
        for line in self._lines():
            with suppress(ValueError):
                if b'"part":' not in line:
                    yield Entry.from_line(line)

    @cached_property
    def _recorded_parts(self) -> dict[StoredObject, list[tuple[Span, str]]]:
        """Of large objects that were interrupted, from one look at the journal."""
        parts = defaultdict[StoredObject, list[tuple[Span, str]]](list)
        for line in self._lines():
            with suppress(ValueError):
                if b'"part":' in line:
                    entry = Entry.from_line(line)
                    start, end = json.loads(line)["part"]
                    parts[entry.object].append(((start, end), entry.checksum))
        return parts

    @contextmanager
    def new_file(self, key: str) -> Iterator[NewFile]:
        """A file that gets its name when the block ends with its being good, and is gone where it does not."""
        path = f"{self._unfinished}/{next(self._numbers)}"
        file = NewFile(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, MODE))
        try:
            try:
                yield file
            finally:
                os.close(file.descriptor)
            if file.is_good:
                self.name(path, key)
        finally:
            if not file.is_good:
                os.unlink(path)

    def name(self, path: str | Path, key: str) -> None:
        os.chmod(path, MODE)
        os.rename(path, self._place(key))

    def take(self, source: Path, key: str) -> str:
        """Have a file of another version here too; by which way: linked, cloned or copied."""
        target = self._place(key)
        with suppress(FileNotFoundError):
            os.unlink(target)
        try:
            os.link(source, target, follow_symlinks=False)
            return "linked"
        except OSError as error:
            if error.errno not in CANNOT_LINK:
                raise
        with self.new_file(key) as copy, source.open("rb") as original:
            way = _copy(original.fileno(), copy.descriptor)
            copy.is_good = True
        return way

    def large_object(self, wanted: StoredObject, part_bytes: int) -> "LargeObject":
        """With the parts that an interrupted sync left, and that are still what they were."""
        name = hashlib.sha256(f"{wanted.key}\0{wanted.etag}".encode()).hexdigest()
        large = LargeObject(wanted, self.large / name, part_bytes)
        if large.path.is_file():
            for span, checksum in self._recorded_parts.get(wanted, ()):
                if checksum_of(large.path, OWN, *span) == checksum:
                    large.is_whole_with(span, checksum)
        else:
            large.path.touch()
        os.truncate(large.path, wanted.size)
        return large

    def flush(self) -> None:
        """Make all of it survive a power cut, by one call for the file system instead of one for every file."""
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "syncfs"):
            os.sync()  # outside Linux; it would wait for every other file system too, and tell of no error
            return
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            if libc.syncfs(descriptor) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(self.path))
        finally:
            os.close(descriptor)

    def end(self) -> None:
        """Take away all that a version does not have."""
        for folder in (self._unfinished, self.large):
            shutil.rmtree(folder)
        self._journal.unlink(missing_ok=True)

    def _lines(self) -> Iterator[bytes]:
        if self._journal.is_file():
            with self._journal.open("rb") as lines:
                yield from lines

    def _place(self, key: str) -> str:
        folder = key.rpartition("/")[0]
        if folder not in self._folders:
            (self.data / folder).mkdir(parents=True, exist_ok=True)
            self._folders.add(folder)
        return f"{self._data}/{key}"

    def _remove_links(self) -> None:
        """What is written here must stay here: whoever may write to the volume could have left links to elsewhere."""
        for folder, subfolders, names in os.walk(self.path):
            for path in (Path(folder, name) for name in (*subfolders, *names)):
                if path.is_symlink():
                    path.unlink()


class LargeObject:
    """An object that arrives in parts, each at its place in one file."""

    def __init__(self, wanted: StoredObject, path: Path, part_bytes: int) -> None:
        self.object = wanted
        self.path = path
        self._spans = [(start, min(start + part_bytes, wanted.size)) for start in range(0, wanted.size, part_bytes)]
        self._checksums: dict[Span, str] = {}
        self._adding = threading.Lock()

    @property
    def missing(self) -> list[Span]:
        return [span for span in self._spans if span not in self._checksums]

    def is_whole_with(self, span: Span, checksum: str) -> bool:
        """Add a part that is there; whether all are now."""
        with self._adding:
            self._checksums[span] = checksum
            return not self.missing

    def own_checksum(self) -> str:
        return joined((self._checksums[start, end], end - start) for start, end in self._spans)

    def discard(self) -> None:
        self.path.unlink()


def partial_versions(staging: Path) -> list[PartialVersion]:
    return [PartialVersion(path) for path in sorted((staging / "versions").glob(".*.partial"))]


def _part_line(entry: Entry, span: Span) -> bytes:
    return entry.to_line().removesuffix(b"}\n") + f', "part": [{span[0]}, {span[1]}]}}\n'.encode()


def _copy(source: int, target: int) -> str:
    try:
        fcntl.ioctl(target, SHARE_BLOCKS, source)
        return "cloned"
    except OSError:
        while chunk := os.read(source, CHUNK_BYTES):
            os.write(target, chunk)
        return "copied"
