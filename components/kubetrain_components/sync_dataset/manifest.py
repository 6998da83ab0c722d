"""The lines of the manifest of a dataset version: objects and their checksums."""

import json
import os
import stat
from dataclasses import dataclass
from json.encoder import encode_basestring as quoted
from pathlib import Path
from typing import Self

from kubetrain_components.object_store.checksums import algorithm_of, checksum_of
from kubetrain_components.object_store.store import StoredObject

MANIFEST = "manifest.jsonl"


@dataclass(frozen=True, slots=True)
class Entry:
    object: StoredObject
    checksum: str
    """algorithm:hex digits"""

    @property
    def has_md5_etag(self) -> bool | None:
        """Return True if the ETag is the MD5 of the content, False if it only looks like one, and None if unknown."""
        algorithm, _, digits = self.checksum.partition(":")
        is_comparable = algorithm == "md5" and len(self.object.etag) == len(digits)
        return self.object.etag.lower() == digits if is_comparable else None

    def to_line(self) -> bytes:
        key, size, etag = self.object
        # Not json.dumps(), which takes four times as long: there may be millions of lines.
        line = f'{{"key": {quoted(key)}, "size": {size}, "etag": {quoted(etag)}, "checksum": {quoted(self.checksum)}}}'
        return line.encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """
        Raises:
            ValueError: if the line is not valid.
        """
        try:
            values = json.loads(line)
            algorithm_of(values["checksum"])
            return cls(StoredObject(str(values["key"]), int(values["size"]), values["etag"]), values["checksum"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("not a valid line of a manifest") from error

    def has_right_size(self, data: Path | str) -> bool:
        return file_size(f"{data}/{self.object.key}") == self.object.size

    def problem_in(self, data: Path) -> str | None:
        """Re-hash the file of the object in a folder and return what is wrong, or None."""
        try:
            return self._problem_in(data)
        except OSError as error:
            return f"{self.object.key} cannot be read ({error.strerror})"

    def _problem_in(self, data: Path) -> str | None:
        path, key = data / self.object.key, self.object.key
        if path.is_symlink() or not path.is_file():
            return f"{key} is missing"
        if not self.has_right_size(data):
            return f"{key} has {path.stat().st_size} bytes, not {self.object.size}"
        if checksum_of(path, algorithm_of(self.checksum)) != self.checksum:
            return f"{key} does not match its checksum"
        return None


def file_size(path: str) -> int | None:
    """Return the size of a regular file, or None if there is none."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
