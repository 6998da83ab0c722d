"""A keep-alive HTTP/1.1 connection for requests without a body; bodies of responses go into the caller's buffer.

It replaces http.client because that takes longer to parse the headers of a small object (with the e-mail parser) than
the object takes to arrive, as benchmarks/sync.py shows.
"""

import base64
import contextlib
import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

HEAD_BYTES = 64 << 10
BUFFER_BYTES = 256 << 10
CONNECT_TIMEOUT_SECONDS = 10.0
READ_TIMEOUT_SECONDS = 30.0
DEFAULT_PORTS = {"http": 80, "https": 443}


class ConnectionFailed(Exception):
    """The server cannot be reached, or its response is incomplete."""


@dataclass(frozen=True)
class Origin:
    """The server that requests go to, and the proxy they go through."""

    scheme: str
    host: str
    port: int
    proxy: str = ""
    tls: ssl.SSLContext | None = None

    @classmethod
    def of_url(cls, url: str, ca_bundle: str | None = None) -> Self:
        """Return the origin of a URL with the proxy that the environment sets for it."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        proxy = "" if proxy_bypass(host) else getproxies().get(parts.scheme, "")
        tls = ssl.create_default_context(cafile=ca_bundle) if parts.scheme == "https" else None
        return cls(parts.scheme, host, parts.port or DEFAULT_PORTS[parts.scheme], proxy, tls)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


class HttpConnection:
    """A connection for one thread, which reads or closes each response before the next request."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        """Holds the body of one response at a time."""
        self._socket: socket.socket | None = None
        self.head_buffer = bytearray(HEAD_BYTES)
        """Holds the head of a response, and the part of the body that arrives with it."""
        # A proxy gets the whole URL, except for TLS, which it only tunnels.
        self._base = f"http://{origin.authority}" if origin.proxy and not origin.tls else ""
        self._proxy_headers = _authorization(origin.proxy) if self._base else {}

    def request(self, method: str, target: str, headers: Mapping[str, str]) -> "HttpResponse":
        """Send a request, with headers that include the host, and return the response.

        Raises:
            ConnectionFailed: if no response arrives.
        """
        lines = [f"{method} {self._base}{target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in {**headers, **self._proxy_headers}.items()]
        message = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        is_reused = self._socket is not None
        try:
            return self._exchange(method, message)
        except (OSError, ConnectionFailed) as error:
            self.close()
            if not is_reused:
                raise ConnectionFailed(_reason(error)) from error
        # The server may have closed the idle connection, which does not mean that it rejects this request.
        return self.request(method, target, headers)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _exchange(self, method: str, message: bytes) -> "HttpResponse":
        if self._socket is None:
            self._socket = _connect(self.origin)
        self._socket.sendall(message)
        head, rest = _receive_head(self._socket, self.head_buffer)
        return HttpResponse(self, self._socket, method, head, rest)


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


class HttpResponse:
    def __init__(
        self, connection: HttpConnection, source: socket.socket, method: str, head: str, rest: tuple[int, int]
    ) -> None:
        try:
            self.status = int(head.split(" ", 2)[1])
        except (IndexError, ValueError):
            raise ConnectionFailed(f"'{head[:80]}' is not an HTTP response") from None
        self.headers = Headers(head)
        self.connection = connection
        self._source = source
        self._buffer, self._at, self._end = connection.head_buffer, *rest
        self._is_chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        has_body = method != "HEAD" and self.status not in (204, 304)
        self._left = int(self.headers.get("content-length", "0")) if has_body and not self._is_chunked else 0
        self._is_chunked &= has_body

    def read_into(self, buffer: memoryview) -> int:
        """Read as much of the body as fits and return the number of bytes; 0 at its end.

        Raises:
            ConnectionFailed: if the connection is lost, or no data arrives within the timeout.
        """
        filled = 0
        try:
            while filled < len(buffer) and (self._left or self._begin_chunk()):
                count = self._receive(buffer[filled : filled + self._left])
                filled, self._left = filled + count, self._left - count
                if self._is_chunked and self._left == 0:
                    self._read_line()
        except (OSError, ValueError) as error:
            self.close()
            if not filled:
                raise ConnectionFailed(_reason(error)) from error
            self._left = 1  # return the bytes that arrived before; the next read fails
        if not filled:
            self._finish()
        return filled

    def close(self) -> None:
        """Discard the rest of the body by closing the connection."""
        self.connection.close()

    def _finish(self) -> None:
        if self.headers.get("connection", "").lower() == "close":
            self.connection.close()

    def _begin_chunk(self) -> bool:
        if not self._is_chunked:
            return False
        self._left = int(self._read_line().partition(b";")[0], 16)
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
        return self._received(_receive_all(self._source, buffer))

    def _refill(self) -> None:
        self._at, self._end = 0, self._received(self._source.recv_into(self._buffer))

    def _received(self, count: int) -> int:
        if count == 0:
            raise OSError("the response was cut short")
        return count


def _receive_all(source: socket.socket, buffer: memoryview) -> int:
    """Fill the buffer in as few calls as possible: after each call, the thread waits for the interpreter lock."""
    if isinstance(source, ssl.SSLSocket):
        return source.recv_into(buffer)
    return source.recv_into(buffer, 0, socket.MSG_WAITALL)


def _receive_head(source: socket.socket, head_buffer: bytearray) -> tuple[str, tuple[int, int]]:
    """Return the head of a response, and the span of the buffer with the part of the body that came with it."""
    buffer, filled = memoryview(head_buffer), 0
    while filled < len(buffer):
        count = source.recv_into(buffer[filled:])
        if count == 0:
            raise OSError("the connection was closed before a response")
        searched, filled = max(0, filled - 3), filled + count
        end = head_buffer.find(b"\r\n\r\n", searched, filled)
        if end >= 0:
            return str(buffer[:end], "latin-1"), (end + 4, filled)
    raise ConnectionFailed(f"the response headers are longer than {HEAD_BYTES} bytes")


def _connect(origin: Origin) -> socket.socket:
    proxy = urlsplit(origin.proxy) if origin.proxy else None
    address = (proxy.hostname, proxy.port or 8080) if proxy else (origin.host, origin.port)
    connected = socket.create_connection(address, CONNECT_TIMEOUT_SECONDS)
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(connected.close)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _set_timeouts(connected, is_encrypted=origin.tls is not None)
        if proxy and origin.tls:
            _open_tunnel(connected, origin)
        if origin.tls:
            connected = origin.tls.wrap_socket(connected, server_hostname=origin.host)
        on_failure.pop_all()
    return connected


def _set_timeouts(connected: socket.socket, *, is_encrypted: bool) -> None:
    if is_encrypted:
        connected.settimeout(READ_TIMEOUT_SECONDS)
        return
    # The kernel's timeout, because Python implements its own by polling the socket before each call.
    connected.settimeout(None)
    limit = struct.pack("ll", int(READ_TIMEOUT_SECONDS), int(READ_TIMEOUT_SECONDS % 1 * 1_000_000))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connected.setsockopt(socket.SOL_SOCKET, option, limit)


def _reason(error: Exception) -> str:
    if isinstance(error, BlockingIOError | TimeoutError):
        return f"no data for {READ_TIMEOUT_SECONDS:g} s"
    return str(error)


def _open_tunnel(connected: socket.socket, origin: Origin) -> None:
    target = f"{origin.host}:{origin.port}"
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    lines += [f"{name}: {value}" for name, value in _authorization(origin.proxy).items()]
    connected.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
    head, _ = _receive_head(connected, bytearray(HEAD_BYTES))
    status = head.split("\r\n", 1)[0]
    if " 200" not in status:
        raise ConnectionFailed(f"the proxy {urlsplit(origin.proxy).hostname} refused to connect: {status}")


def _authorization(proxy: str) -> dict[str, str]:
    """Return the header for the user and password in a proxy's URL."""
    parts = urlsplit(proxy)
    if parts.username is None:
        return {}
    account = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(account.encode()).decode()}"}
