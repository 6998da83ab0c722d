"""TensorBoard event files with the same scalars as metrics.jsonl.

TensorBoard's own writer would add 70 MB of packages and half a second of import time.

record:  length (8 bytes), masked CRC32C of it, event, masked CRC32C of it
event:   protobuf Event {1: wall_time, 2: step, 3: file_version, 5: summary {1: {1: tag, 2: simple_value}},
         7: session_log {1: status}}
"""

from __future__ import annotations

import struct
import time
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path

from kubetrain_trainer.durable_files import append

PREFIX = "events.out.tfevents."
SESSION_STARTS = 1
VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5


class EventFile:
    """An event file. Each start of a run writes its own, and readers read them in the order of their names."""

    def __init__(self, folder: Path, resumed_step: int) -> None:
        """Continue from the resumed step. Readers discard rows after it, because they will be measured again."""
        folder.mkdir(exist_ok=True)
        self.restarts = len(list(folder.glob(f"{PREFIX}*")))
        self._path = folder / f"{PREFIX}{self.restarts:010d}"
        self._append(0, _field(3, BYTES, b"brain.Event:2"))
        # Readers discard what they have read for this step and later ones.
        self._append(resumed_step + 1, _field(7, BYTES, _field(1, VARINT, SESSION_STARTS)))

    def append(self, row: Mapping[str, float]) -> None:
        values = [_field(1, BYTES, _scalar(tag, value)) for tag, value in row.items() if tag != "step"]
        self._append(int(row["step"]), _field(5, BYTES, b"".join(values)))

    def _append(self, step: int, content: bytes) -> None:
        event = _field(1, DOUBLE, struct.pack("<d", time.time())) + _field(2, VARINT, step) + content
        length = struct.pack("<Q", len(event))
        append(self._path, length + _masked_checksum(length) + event + _masked_checksum(event))


def _scalar(tag: str, value: float) -> bytes:
    # struct rejects values too large for four bytes, array turns them into infinity.
    return _field(1, BYTES, tag.encode()) + _field(2, FLOAT, array("f", [value]).tobytes())


def _field(number: int, kind: int, content: int | bytes) -> bytes:
    key = bytes(_varint(number << 3 | kind))
    if isinstance(content, int):
        return key + bytes(_varint(content))
    return key + (bytes(_varint(len(content))) if kind == BYTES else b"") + content


def _varint(value: int) -> Iterator[int]:
    """Encode seven bits per byte, the lowest first. The eighth bit is set if more bytes follow."""
    while value > 0x7F:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value


def _masked_checksum(data: bytes) -> bytes:
    checksum = _crc32c(data)
    return struct.pack("<I", ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _crc32c(data: bytes) -> int:
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum = CRC32C_OF_BYTE[(checksum ^ byte) & 0xFF] ^ checksum >> 8
    return checksum ^ 0xFFFFFFFF


def _crc32c_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


CRC32C_OF_BYTE = [_crc32c_of_byte(byte) for byte in range(256)]
