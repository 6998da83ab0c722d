"""A keep-alive HTTP/1.1 connection for requests without a body.

It replaces http.client and urllib3 because they take longer to parse the headers of a small object (with the e-mail
parser) than the object takes to arrive, as benchmarks/sync.py shows.
"""

import socket
from collections.abc import Mapping

from kubetrain_components.object_store.s3 import connect
from kubetrain_components.object_store.s3.http_body import HttpBody
from kubetrain_components.object_store.s3.http_head import (
    HEAD_BYTES,
    ConnectionFailed,
    Headers,
    receive_head,
    status_of,
)
from kubetrain_components.object_store.s3.origin import Origin

BUFFER_BYTES = 256 << 10


class HttpConnection:
    """A connection for one thread, which reads or closes each response before the next request."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        """Holds the body of one response at a time."""
        self._connected: socket.socket | None = None
        self._head_buffer = bytearray(HEAD_BYTES)
        # A proxy gets the whole URL, except for TLS, which it only tunnels.
        is_forwarded = origin.proxy is not None and origin.tls is None
        self._base = f"http://{origin.authority}" if is_forwarded else ""
        authorization = origin.proxy.authorization if origin.proxy and is_forwarded else ""
        self._proxy_headers = {"Proxy-Authorization": authorization} if authorization else {}

    def request(self, method: str, target: str, headers: Mapping[str, str]) -> "HttpResponse":
        """Send a request, with headers that include the host, and return the response.

        Raises:
            ConnectionFailed: if no response arrives.
        """
        lines = [f"{method} {self._base}{target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in {**headers, **self._proxy_headers}.items()]
        message = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        if self._connected is not None and not connect.is_reusable(self._connected):
            self.close()
        is_reused = self._connected is not None
        try:
            return self._exchange(method, message)
        except (OSError, ConnectionFailed) as error:
            self.close()
            if not is_reused:
                raise ConnectionFailed(_reason_of(error)) from error
        # The server may have closed the idle connection, which does not mean that it rejects this request.
        return self.request(method, target, headers)

    def close(self) -> None:
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    def _exchange(self, method: str, message: bytes) -> "HttpResponse":
        if self._connected is None:
            self._connected = connect.connect(self.origin)
        self._connected.sendall(message)
        head, rest = receive_head(self._connected, self._head_buffer)
        status, headers = status_of(head), Headers(head)
        has_body = method != "HEAD" and status not in (204, 304)
        body = HttpBody(self._connected, headers, self._head_buffer, rest) if has_body else None
        return HttpResponse(self, status, headers, body)


class HttpResponse:
    def __init__(self, connection: HttpConnection, status: int, headers: Headers, body: HttpBody | None) -> None:
        self.connection = connection
        self.status = status
        self.headers = headers
        self._body = body

    def read_into(self, buffer: memoryview) -> int:
        """Read as much of the body as fits and return the number of bytes; 0 at its end.

        Raises:
            ConnectionFailed: if the connection is lost, or no data arrives within the timeout.
        """
        if self._body is None:
            return 0
        try:
            count = self._body.read_into(buffer)
        except (OSError, ValueError) as error:
            self.close()
            raise ConnectionFailed(_reason_of(error)) from error
        if not count and not self._body.allows_reuse:
            self.close()
        return count

    def close(self) -> None:
        """Discard the rest of the body by closing the connection."""
        self.connection.close()


def _reason_of(error: Exception) -> str:
    if isinstance(error, BlockingIOError | TimeoutError):
        return f"no data for {connect.READ_TIMEOUT_SECONDS:g} s"
    return str(error)
