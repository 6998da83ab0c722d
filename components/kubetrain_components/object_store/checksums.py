"""Checksums of whole objects as S3 reports them, computed while the bytes are read.

A checksum is written as "algorithm:hex digits", also in manifests.
"""

import hashlib
import re
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from kubetrain_trainer.durable_files import CHUNK_BYTES

Buffer = bytes | bytearray | memoryview


class Hasher(Protocol):
    def update(self, data: Buffer, /) -> None: ...

    def hexdigest(self) -> str: ...


class _Crc:
    """A hasher made of a function that takes the previous CRC as a number."""

    def __init__(self, update: Callable[[Buffer, int], int], digits: int) -> None:
        self._update = update
        self._digits = digits
        self._value = 0

    def update(self, data: Buffer, /) -> None:
        self._value = self._update(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:0{self._digits}x}"


def _crc64nvme() -> Hasher:
    from awscrt.checksums import crc64nvme

    return _Crc(crc64nvme, 16)


def _crc32c() -> Hasher:
    from awscrt.checksums import crc32c

    return _Crc(crc32c, 8)


HASHERS: dict[str, Callable[[], Hasher]] = {
    "crc64nvme": _crc64nvme,
    "crc32c": _crc32c,
    "crc32": lambda: _Crc(zlib.crc32, 8),
    "sha256": hashlib.sha256,
    "sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "md5": lambda: hashlib.md5(usedforsecurity=False),
}
"""Fastest first."""
LOOKS_LIKE_MD5 = re.compile("[0-9a-fA-F]{32}")
DEFAULT_ALGORITHM = "crc64nvme"
"""The algorithm for objects for which the store reports no checksum."""


def checksum_of(path: Path, algorithm: str, start: int = 0, end: int | None = None) -> str:
    """Return the checksum of a file, or of its bytes from start to end (exclusive)."""
    hasher, buffer = HASHERS[algorithm](), memoryview(bytearray(CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        left = file.seek(0, 2) - start if end is None else end - start
        file.seek(start)
        while left > 0 and (count := file.readinto(buffer[:left])):
            hasher.update(buffer[:count])
            left -= count
    return format_checksum(algorithm, hasher)


def format_checksum(algorithm: str, hasher: Hasher) -> str:
    return f"{algorithm}:{hasher.hexdigest()}"


def combine_checksums(parts: Iterable[tuple[str, int]]) -> str:
    """Return the checksum of a whole from the checksums (of the default algorithm) and lengths of its parts."""
    from awscrt.checksums import combine_crc64nvme

    whole = 0
    for checksum, length in parts:
        whole = combine_crc64nvme(whole, int(checksum.removeprefix(f"{DEFAULT_ALGORITHM}:"), 16), length)
    return f"{DEFAULT_ALGORITHM}:{whole:016x}"


def algorithm_of(checksum: str) -> str:
    """
    Raises:
        ValueError: if it is not a checksum that can be computed here.
    """
    algorithm, _, digits = checksum.partition(":")
    if algorithm not in HASHERS or not digits:
        raise ValueError(f"'{checksum}' is not a checksum")
    return algorithm
