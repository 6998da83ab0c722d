"""The body of an HTTP/1.1 response, read into the caller's buffer."""

import socket

from kubetrain_components.object_store.s3.http_head import ConnectionFailed, Headers

UNTIL_CLOSED = 1 << 62
"""The length of a body that ends with its connection."""


class HttpBody:
    def __init__(self, source: socket.socket, headers: Headers, head_buffer: bytearray, rest: tuple[int, int]) -> None:
        """
        Args:
            head_buffer: Has the part of the body that arrived with the head.
            rest: The span of that part.

        Raises:
            ConnectionFailed: if the headers do not tell the length of the body.
        """
        self._headers = headers
        self._source = source
        self._buffer, self._at, self._end = head_buffer, *rest
        self._is_chunked = headers.get("transfer-encoding").lower().endswith("chunked")
        self._left = 0 if self._is_chunked else self._length()
        self._ends_with_connection = self._left == UNTIL_CLOSED

    @property
    def allows_reuse(self) -> bool:
        """True if the connection can be used again; surplus bytes would be taken for the next response."""
        is_closed = self._ends_with_connection or "close" in self._headers.get("connection").lower()
        return not is_closed and self._at == self._end

    def read_into(self, buffer: memoryview) -> int:
        """Read as much as fits and return the number of bytes; 0 at the end.

        Raises:
            OSError, ValueError: if the rest cannot be read; the bytes that arrived before are returned first.
        """
        filled = 0
        try:
            while filled < len(buffer) and (self._left or self._begin_chunk()):
                count = self._receive(buffer[filled : filled + self._left])
                filled, self._left = filled + count, self._left - count
                if self._is_chunked and self._left == 0:
                    self._read_line()
        except (OSError, ValueError):
            if not filled:
                raise
            self._left = max(self._left, 1)  # the next read fails again
        return filled

    def _length(self) -> int:
        length = self._headers.get("content-length")
        if length and not length.isdecimal():
            raise ConnectionFailed(f"the response has the Content-Length '{length}'")
        return int(length) if length else UNTIL_CLOSED

    def _begin_chunk(self) -> bool:
        if not self._is_chunked:
            return False
        self._left = int(self._read_line().partition(b";")[0], 16)
        if self._left < 0:
            raise ValueError("the response has a chunk of negative length")
        if self._left == 0:
            self._is_chunked = False
            while self._read_line():  # trailers
                pass
        return self._left > 0

    def _read_line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            if self._at == self._end:
                self._refill()
            after = self._buffer.find(b"\n", self._at, self._end) + 1 or self._end
            line += self._buffer[self._at : after]
            self._at = after
        return line.rstrip(b"\r\n")

    def _receive(self, buffer: memoryview) -> int:
        if self._at == self._end and self._is_chunked:
            self._refill()
        if count := min(self._end - self._at, len(buffer)):
            buffer[:count] = self._buffer[self._at : self._at + count]
            self._at += count
            return count
        count = _receive_all(self._source, buffer)
        if count == 0 and self._ends_with_connection:
            self._left = 0
            return 0
        return _some(count)

    def _refill(self) -> None:
        self._at, self._end = 0, _some(self._source.recv_into(memoryview(self._buffer)))


def _receive_all(source: socket.socket, buffer: memoryview) -> int:
    """Fill the buffer in as few calls as possible: after each call, the thread waits for the interpreter lock."""
    if type(source) is socket.socket:
        return source.recv_into(buffer, 0, socket.MSG_WAITALL)
    return source.recv_into(buffer)


def _some(count: int) -> int:
    if count == 0:
        raise OSError("the response was cut short")
    return count
