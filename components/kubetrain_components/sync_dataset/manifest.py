"""The lines of a dataset version's manifest: objects, and what their bytes hash to."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from kubetrain_components.object_store.store import StoredObject
from kubetrain_trainer.durable_files import sha256_of


@dataclass(frozen=True)
class Entry:
    object: StoredObject
    checksum: str
    """sha256:<hex digits>"""

    def to_line(self) -> bytes:
        return json.dumps({**asdict(self.object), "checksum": self.checksum}, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """The entry that a line describes.

        Raises:
            ValueError: where it describes none.
        """
        try:
            values = json.loads(line)
            return cls(StoredObject(str(values["key"]), int(values["size"]), values["etag"]), values["checksum"])
        except (KeyError, TypeError) as error:
            raise ValueError("not a line of a manifest") from error

    def has_its_size(self, data: Path) -> bool:
        path = data / self.object.key
        return path.is_file() and path.stat().st_size == self.object.size

    def problem_in(self, data: Path) -> str | None:
        """What is wrong with the object's file in this folder, which is re-hashed; None: nothing."""
        path, key = data / self.object.key, self.object.key
        if not path.is_file():
            return f"{key} is missing"
        if not self.has_its_size(data):
            return f"{key} has {path.stat().st_size} bytes, not {self.object.size}"
        if f"sha256:{sha256_of(path)}" != self.checksum:
            return f"{key} is not the bytes that were synced"
        return None
