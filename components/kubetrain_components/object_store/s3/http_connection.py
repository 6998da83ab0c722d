"""A keep-alive HTTP/1.1 connection for requests without a body; what comes goes straight into the caller's buffer.

benchmarks/sync.py shows why it is our own: http.client takes longer to parse the headers of a small object, as those of
an e-mail, than the object takes to arrive.
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
CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0
USUAL_PORTS = {"http": 80, "https": 443}


class ConnectionFailed(Exception):
    """The server cannot be reached, or did not answer whole."""


@dataclass(frozen=True)
class Origin:
    """Where requests go, and by which way."""

    scheme: str
    host: str
    port: int
    proxy: str = ""
    tls: ssl.SSLContext | None = None

    @classmethod
    def of_url(cls, url: str, ca_bundle: str | None = None) -> Self:
        """By the proxy that the environment names for it."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        proxy = "" if proxy_bypass(host) else getproxies().get(parts.scheme, "")
        tls = ssl.create_default_context(cafile=ca_bundle) if parts.scheme == "https" else None
        return cls(parts.scheme, host, parts.port or USUAL_PORTS[parts.scheme], proxy, tls)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == USUAL_PORTS[self.scheme] else f"{host}:{self.port}"


class HttpConnection:
    """For one thread: a response is read to its end, or closed, before the next request."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        """For the bodies of answers, one after the other."""
        self._socket: socket.socket | None = None
        self.scratch = bytearray(HEAD_BYTES)
        """For the heads of answers, and what comes with them."""
        # A proxy is told the whole URL, unless it only tunnels what is encrypted.
        self._base = f"http://{origin.authority}" if origin.proxy and not origin.tls else ""
        self._proxy_headers = _authorization(origin.proxy) if self._base else {}

    def request(self, method: str, target: str, headers: Mapping[str, str]) -> "HttpResponse":
        """The answer to a request, whose headers name the host.

        Raises:
            ConnectionFailed: where no answer comes.
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
        # The server may have closed a connection that idled: that says nothing about this request.
        return self.request(method, target, headers)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _exchange(self, method: str, message: bytes) -> "HttpResponse":
        if self._socket is None:
            self._socket = _connect(self.origin)
        self._socket.sendall(message)
        head, rest = _receive_head(self._socket, self.scratch)
        return HttpResponse(self, self._socket, method, head, rest)


class Headers:
    """Of an answer, looked up where they stand: most of them nobody asks for."""

    def __init__(self, head: str) -> None:
        self._head = head
        self._names = head.lower()

    def get(self, name: str, default: str = "") -> str:
        """The value of the header with this name, which is in lower case."""
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
            raise ConnectionFailed(f"'{head[:80]}' is no answer in HTTP") from None
        self.headers = Headers(head)
        self.connection = connection
        self._source = source
        self._came, self._at, self._end = connection.scratch, *rest
        self._is_chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        has_body = method != "HEAD" and self.status not in (204, 304)
        self._left = int(self.headers.get("content-length", "0")) if has_body and not self._is_chunked else 0
        self._is_chunked &= has_body

    def read_into(self, buffer: memoryview) -> int:
        """More of the body, as much as fits; 0 at its end.

        Raises:
            ConnectionFailed: where the body is cut short, or comes no further.
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
            self._left = 1  # what came before is of use: it fails when asked for more
        if not filled:
            self._finish()
        return filled

    def close(self) -> None:
        """Give up what is left of the body, and the connection with it."""
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
            after = self._came.find(b"\n", self._at, self._end) + 1 or self._end
            line += self._came[self._at : after]
            self._at = after
        return line.rstrip(b"\r\n")

    def _receive(self, buffer: memoryview) -> int:
        if self._at == self._end and self._is_chunked:
            self._refill()
        if count := min(self._end - self._at, len(buffer)):
            buffer[:count] = self._came[self._at : self._at + count]
            self._at += count
            return count
        return self._received(_receive_all(self._source, buffer))

    def _refill(self) -> None:
        self._at, self._end = 0, self._received(self._source.recv_into(self._came))

    def _received(self, count: int) -> int:
        if count == 0:
            raise OSError("the answer was cut short")
        return count


def _receive_all(source: socket.socket, buffer: memoryview) -> int:
    """In as few calls as can be: after each, threads queue for the interpreter."""
    if isinstance(source, ssl.SSLSocket):
        return source.recv_into(buffer)
    return source.recv_into(buffer, 0, socket.MSG_WAITALL)


def _receive_head(source: socket.socket, scratch: bytearray) -> tuple[str, tuple[int, int]]:
    """The head of an answer, and where in the scratch what came of its body begins and ends."""
    buffer, filled = memoryview(scratch), 0
    while filled < len(buffer):
        count = source.recv_into(buffer[filled:])
        if count == 0:
            raise OSError("the connection was closed before an answer")
        searched, filled = max(0, filled - 3), filled + count
        end = scratch.find(b"\r\n\r\n", searched, filled)
        if end >= 0:
            return str(buffer[:end], "latin-1"), (end + 4, filled)
    raise ConnectionFailed("the answer's headers have no end")


def _connect(origin: Origin) -> socket.socket:
    proxy = urlsplit(origin.proxy) if origin.proxy else None
    address = (proxy.hostname, proxy.port or 8080) if proxy else (origin.host, origin.port)
    connected = socket.create_connection(address, CONNECT_SECONDS)
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(connected.close)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _limit_waiting(connected, is_encrypted=origin.tls is not None)
        if proxy and origin.tls:
            _open_tunnel(connected, origin)
        if origin.tls:
            connected = origin.tls.wrap_socket(connected, server_hostname=origin.host)
        on_failure.pop_all()
    return connected


def _limit_waiting(connected: socket.socket, *, is_encrypted: bool) -> None:
    if is_encrypted:
        connected.settimeout(READ_SECONDS)
        return
    # By the kernel: with a timeout of Python's a socket is polled before each call.
    connected.settimeout(None)
    limit = struct.pack("ll", int(READ_SECONDS), int(READ_SECONDS % 1 * 1_000_000))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connected.setsockopt(socket.SOL_SOCKET, option, limit)


def _reason(error: Exception) -> str:
    if isinstance(error, BlockingIOError | TimeoutError):
        return f"nothing came for {READ_SECONDS:g} s"
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
    """What the user and password in a proxy's URL stand for."""
    parts = urlsplit(proxy)
    if parts.username is None:
        return {}
    account = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(account.encode()).decode()}"}
