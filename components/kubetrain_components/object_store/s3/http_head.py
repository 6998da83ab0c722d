"""The head of an HTTP/1.1 response."""

import socket

HEAD_BYTES = 64 << 10
SWITCHING_PROTOCOLS = 101


class ConnectionFailed(Exception):
    """The server cannot be reached, or its response is incomplete."""


class Headers:
    """Response headers, parsed when they are read: most of them never are."""

    def __init__(self, head: str) -> None:
        self._head = head
        self._names = head.lower()

    def get(self, name: str, default: str = "") -> str:
        """Return the value of the header with this lowercase name."""
        at = self._names.find(f"\r\n{name}:")
        if at < 0:
            return default
        start = at + len(name) + 3
        end = self._head.find("\r\n", start)
        return self._head[start : len(self._head) if end < 0 else end].strip()


def receive_head(source: socket.socket, head_buffer: bytearray) -> tuple[str, tuple[int, int]]:
    """Return the head of the final response, and the span of the buffer with what arrived after it.

    Raises:
        OSError: if the connection is lost.
        ConnectionFailed: if what arrives is not a response.
    """
    head, (start, end) = _receive_one(source, head_buffer, 0)
    while 100 <= (status := status_of(head)) < 200 and status != SWITCHING_PROTOCOLS:  # the answer is yet to come
        head_buffer[: end - start] = head_buffer[start:end]
        head, (start, end) = _receive_one(source, head_buffer, end - start)
    return head, (start, end)


def status_of(head: str) -> int:
    try:
        return int(head.split(" ", 2)[1])
    except (IndexError, ValueError):
        raise ConnectionFailed(f"'{head[:80]}' is not an HTTP response") from None


def _receive_one(source: socket.socket, head_buffer: bytearray, filled: int) -> tuple[str, tuple[int, int]]:
    buffer, searched = memoryview(head_buffer), 0
    while (end := head_buffer.find(b"\r\n\r\n", searched, filled)) < 0:
        if filled == len(buffer):
            raise ConnectionFailed(f"the response headers are longer than {HEAD_BYTES} bytes")
        count = source.recv_into(buffer[filled:])
        if count == 0:
            raise OSError("the connection was closed before a response")
        searched, filled = max(0, filled - 3), filled + count
    return str(buffer[:end], "latin-1"), (end + 4, filled)
