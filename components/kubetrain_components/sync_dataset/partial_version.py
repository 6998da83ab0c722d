"""A version while it is being made, and what is left of it where that was interrupted.

versions/.<digest>.partial/data/<key>       has its name since its bytes were verified ...
versions/.<digest>.partial/verified.jsonl   ... to these hashes: a power cut may have torn it since
versions/.<digest>.partial/unfinished/      files without a name yet
"""

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kubetrain_components.sync_dataset.manifest import Entry
from kubetrain_trainer.durable_files import CHUNK_BYTES


@dataclass(frozen=True)
class PartialVersion:
    path: Path

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def _journal(self) -> Path:
        return self.path / "verified.jsonl"

    @property
    def _unfinished(self) -> Path:
        return self.path / "unfinished"

    def begin(self) -> None:
        shutil.rmtree(self._unfinished, ignore_errors=True)
        self._unfinished.mkdir(parents=True)

    def record(self, entry: Entry) -> None:
        with self._journal.open("ab", buffering=0) as journal:  # many threads at once: each line is one write
            journal.write(entry.to_line())

    def recorded(self) -> Iterator[Entry]:
        """What was verified, as far as the journal survived."""
        if not self._journal.is_file():
            return
        with self._journal.open("rb") as lines:
            for line in lines:
                with suppress(ValueError):
                    yield Entry.from_line(line)

    @contextmanager
    def new_file(self, key: str) -> Iterator[IO[bytes]]:
        """A file that gets its name when the block ends well, and is gone where it does not."""
        with tempfile.NamedTemporaryFile(dir=self._unfinished, delete=False) as file:
            path = Path(file.name)
            try:
                yield file
                file.flush()
                path.chmod(0o444)
                path.rename(self._place(key))
            finally:
                path.unlink(missing_ok=True)

    def take(self, source: Path, key: str) -> bool:
        """Link a file, or where the volume cannot, copy it; whether it was linked."""
        target = self._place(key)
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
            return True
        except OSError:
            with self.new_file(key) as copy, source.open("rb") as original:
                shutil.copyfileobj(original, copy, CHUNK_BYTES)
            return False

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
        shutil.rmtree(self._unfinished)
        self._journal.unlink(missing_ok=True)

    def _place(self, key: str) -> Path:
        path = self.data / key
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def partial_versions(staging: Path) -> list[PartialVersion]:
    return [PartialVersion(path) for path in sorted((staging / "versions").glob(".*.partial"))]
