"""A large object, which arrives in parts that are written to one file."""

import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from kubetrain_components.object_store.checksums import DEFAULT_ALGORITHM, checksum_of, combine_checksums
from kubetrain_components.object_store.store import StoredObject

BLOCK_BYTES = 512
"""The unit of st_blocks, which does not depend on the file system."""

Span = tuple[int, int]
"""Start and end (exclusive) of some bytes of an object."""


class LargeObject:
    def __init__(self, wanted: StoredObject, path: Path, part_bytes: int, recorded: Mapping[Span, str]) -> None:
        """
        Args:
            recorded: Checksums of the parts that an interrupted sync downloaded, which may be damaged since.
        """
        self.object = wanted
        self.path = path
        self._part_bytes = part_bytes
        self._recorded = recorded
        self._checksums: dict[Span, str] = {}
        self._missing = -(-wanted.size // part_bytes)
        self._lock = threading.Lock()

    @property
    def spans(self) -> Iterator[Span]:
        size, length = self.object.size, self._part_bytes
        return ((start, min(start + length, size)) for start in range(0, size, length))

    @property
    def allocated_bytes(self) -> int:
        """The bytes that its unfinished file already takes up on the volume."""
        return min(self.object.size, self.path.stat().st_blocks * BLOCK_BYTES) if self.path.exists() else 0

    def make_file(self) -> None:
        self.path.touch()
        os.truncate(self.path, self.object.size)

    def recorded_part(self, span: Span) -> str | None:
        """Return the checksum of a part that arrived earlier, or None if it is not there or damaged."""
        checksum = self._recorded.get(span)
        is_intact = checksum is not None and checksum_of(self.path, DEFAULT_ALGORITHM, *span) == checksum
        return checksum if is_intact else None

    def add_part(self, span: Span, checksum: str) -> bool:
        """Record a part that arrived; return True if it completes the object."""
        with self._lock:
            self._checksums[span] = checksum
            self._missing -= 1
            return self._missing == 0

    def combined_checksum(self) -> str:
        return combine_checksums((self._checksums[start, end], end - start) for start, end in self.spans)

    def discard(self) -> None:
        self.path.unlink()
