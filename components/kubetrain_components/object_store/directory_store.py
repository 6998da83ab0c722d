"""Objects as files of a directory."""

import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kubetrain_components.object_store.store import ObjectChanged, ObjectContent, StoredObject, StoreError
from kubetrain_trainer.durable_files import CHUNK_BYTES, flush_directory, flush_file

RESERVED_PREFIX = ".kubetrain-"
"""Prefix of files that are not objects: the lock, and unfinished writes."""


class DirectoryStore:
    def __init__(self, root: Path) -> None:
        self.uri = root.absolute().as_uri()
        self._root = root

    def list(self) -> Iterator[StoredObject]:
        if not self._root.is_dir():
            raise StoreError(f"{self._root} is not a directory: check the path of the dataset")
        with self._translated_errors("read"):
            for folder, subfolders, names in os.walk(self._root, onerror=_raise):
                for name in (*subfolders, *names):
                    path = Path(folder, name)
                    status = path.lstat()
                    if stat.S_ISREG(status.st_mode) and not name.startswith(RESERVED_PREFIX):
                        yield self._describe(path, status)
                    elif not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
                        raise StoreError(
                            f"{path} is a symbolic link or a device, which cannot be an object: "
                            "replace it with a file or a folder, or delete it"
                        )

    def read(self, key: str, etag: str | None = None, start: int = 0, end: int | None = None) -> ObjectContent:
        return ObjectContent(self._chunks(key, etag, start, end))

    def checksum(self, key: str, etag: str) -> str | None:
        return None

    def write(self, key: str, content: bytes | Path) -> None:
        path = self._root / key
        temporary = path.with_name(f"{RESERVED_PREFIX}{secrets.token_hex(8)}")
        with self._translated_errors("write"):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                if isinstance(content, bytes):
                    temporary.write_bytes(content)
                else:
                    shutil.copyfile(content, temporary)
                flush_file(temporary)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
            flush_directory(path.parent)

    def find(self, key: str) -> StoredObject | None:
        path = self._root / key
        with self._translated_errors("read"):
            return self._describe(path, path.stat()) if path.is_file() else None

    def write_if(self, key: str, content: bytes, etag: str | None) -> None:
        with self._locked():
            found = self.find(key)
            if (found.etag if found else None) != etag:
                raise ObjectChanged(f"{self._root / key} was changed by another writer")
            self.write(key, content)

    def delete(self, key: str) -> None:
        with self._translated_errors("delete"):
            (self._root / key).unlink(missing_ok=True)

    def _chunks(self, key: str, etag: str | None, start: int, end: int | None) -> Iterator[bytes]:
        path = self._root / key
        with self._translated_errors("read"), path.open("rb") as file:
            size = self._check_unchanged(file, path, etag)
            left = min(size, size if end is None else end) - start
            if left <= 0 and (start > 0 or end is not None):
                raise StoreError(f"{path} has {size} bytes, none of them from {start} to {end}")
            file.seek(start)
            while chunk := file.read(min(left, CHUNK_BYTES)):
                left -= len(chunk)
                yield chunk
            self._check_unchanged(file, path, etag)

    def _check_unchanged(self, file: BinaryIO, path: Path, etag: str | None) -> int:
        """Return the size of the file if it still has this ETag."""
        found = self._describe(path, os.fstat(file.fileno()))
        if etag not in (None, found.etag):
            raise ObjectChanged(f"{path} changed while it was being read")
        return found.size

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._translated_errors("write"):
            self._root.mkdir(parents=True, exist_ok=True)
            with (self._root / f"{RESERVED_PREFIX}lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield

    @contextmanager
    def _translated_errors(self, verb: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            is_gone = verb == "read" and isinstance(error, FileNotFoundError)
            raise (ObjectChanged if is_gone else StoreError)(
                f"cannot {verb} {error.filename or self._root} ({error.strerror}): "
                "check the path, its permissions and the free space"
            ) from error

    def _describe(self, path: Path, status: os.stat_result) -> StoredObject:
        etag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
        return StoredObject(path.relative_to(self._root).as_posix(), status.st_size, etag)


def _raise(error: OSError) -> None:
    raise error
