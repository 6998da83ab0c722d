"""An HTTP proxy: tunnels for TLS, and plain requests that it passes on."""

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[str] = []
        self.accounts: list[str] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


@contextlib.contextmanager
def running_proxy() -> Iterator[Proxy]:
    with Proxy() as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Proxy

    def log_message(self, *unused: object) -> None: ...

    def do_CONNECT(self) -> None:
        self._note()
        host, _, port = self.path.partition(":")
        with socket.create_connection((host, int(port))) as upstream:
            self.send_response(200)
            self.end_headers()
            _join(self.connection, upstream)

    def do_GET(self) -> None:
        self._note()
        url = urlsplit(self.path)
        headers = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        with socket.create_connection((url.hostname, url.port)) as upstream:
            upstream.sendall(f"GET {url.path}?{url.query} HTTP/1.1\r\n{headers}\r\n".encode())
            _join(self.connection, upstream)

    def _note(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        self.server.accounts.append(self.headers.get("Proxy-Authorization", ""))
        self.close_connection = True


def _join(one: socket.socket, other: socket.socket) -> None:
    """Copy between both until one ends."""
    with selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
        for source, sink in ((one, other), (other, one)):
            selector.register(source, selectors.EVENT_READ, sink)
        while True:
            for ready, _ in selector.select():
                if not (content := ready.fileobj.recv(1 << 16)):  # type: ignore[union-attr]
                    return
                ready.data.sendall(content)
