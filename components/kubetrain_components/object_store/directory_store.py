"""Objects as files of a directory."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from kubetrain_components.object_store.store import ObjectChanged, ObjectContent, StoredObject, StoreError
from kubetrain_trainer.durable_files import CHUNK_BYTES, write_atomically


class DirectoryStore:
    def __init__(self, root: Path) -> None:
        self.uri = root.absolute().as_uri()
        self._root = root

    def list(self) -> Iterator[StoredObject]:
        if not self._root.is_dir():
            raise StoreError(f"{self._root} is not a directory: check the path of the dataset")
        for folder, subfolders, names in os.walk(self._root):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            for name in names:
                path = Path(folder, name)
                if not name.startswith(".") and not path.is_symlink():
                    yield self._describe(path)

    def read(self, key: str, etag: str | None = None) -> ObjectContent:
        found = self.find(key)
        if found is None or (etag is not None and found.etag != etag):
            raise ObjectChanged(f"{self._root / key} changed or went away while it was read")
        return ObjectContent(self._chunks(self._root / key))

    def write(self, key: str, content: bytes | Path) -> None:
        path = self._root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content if isinstance(content, bytes) else content.read_bytes())

    def find(self, key: str) -> StoredObject | None:
        path = self._root / key
        return self._describe(path) if path.is_file() else None

    def write_if(self, key: str, content: bytes, etag: str | None) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        with (self._root / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = self.find(key)
            if (found.etag if found else None) != etag:
                raise ObjectChanged(f"{self._root / key} was written by someone else meanwhile")
            self.write(key, content)

    def _chunks(self, path: Path) -> Iterator[bytes]:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def _describe(self, path: Path) -> StoredObject:
        status = path.stat()
        etag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
        return StoredObject(path.relative_to(self._root).as_posix(), status.st_size, etag)
