"""Ranges of bytes: what a server sends may be another one than it was asked for."""

import re
from collections.abc import Iterator
from typing import TypeVar

CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(?:\d+|\*)")
Chunk = TypeVar("Chunk", bytes, memoryview)


def range_problem(received: str, start: int, end: int | None) -> str:
    """Return what is wrong with a Content-Range; empty if its bytes are the expected ones, or their beginning."""
    if not received and (start, end) == (0, None):
        return ""
    span = CONTENT_RANGE.fullmatch(received)
    if span and start == int(span[1]) <= int(span[2]) and (end is None or int(span[2]) < end):
        return ""
    wanted = f"{start}-{'' if end is None else end - 1}"
    return (
        f"the answer has the bytes '{received}' instead of {wanted}: a cache or proxy before the server is broken; "
        "connect to the server directly"
    )


def slice_chunks(chunks: Iterator[Chunk], start: int, end: int | None) -> Iterator[Chunk]:
    """Yield the bytes from start to end (exclusive)."""
    at = 0
    for chunk in chunks:
        if part := chunk[max(0, start - at) : None if end is None else max(0, end - at)]:
            yield part
        at += len(chunk)
