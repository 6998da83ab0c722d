"""An HTTP proxy that forwards requests and tunnels, and notes what it was asked for."""

import contextlib
import select
import socket
import ssl
import threading
from typing import Self
from urllib.parse import urlsplit

ACCOUNT = "proxy-authorization: "


class Proxy:
    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.seen: list[str] = []
        """Method and target of each connection."""
        self.accounts: list[str] = []
        """Proxy-Authorization of each connection."""
        self.upstreams: dict[str, int] = {}
        """Ports on this machine of hosts whose names only the proxy knows."""
        self._tls = tls
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{port}"
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _start(self, target: object, *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._start(self._serve, self._listening.accept()[0])

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as open_sockets:
            if self._tls:
                client = self._tls.wrap_socket(client, server_side=True)
            open_sockets.enter_context(client)
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(65536)
            method, target = head.decode().split(" ")[:2]
            parts = urlsplit(target if "://" in target else f"//{target}")
            is_tunnel = method == "CONNECT"
            self.seen.append(f"{method} {target if is_tunnel else f'http://{parts.netloc}'}")
            self.accounts += [line[21:] for line in head.decode().splitlines() if line.lower().startswith(ACCOUNT)]
            known = self.upstreams.get(parts.hostname or "")
            upstream = ("127.0.0.1", known) if known else (parts.hostname, parts.port)
            server = open_sockets.enter_context(socket.create_connection(upstream))
            if is_tunnel:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                server.sendall(head.replace(f"http://{parts.netloc}".encode(), b""))
            _relay(client, server)


def _relay(client: socket.socket, server: socket.socket) -> None:
    while True:
        pending = isinstance(client, ssl.SSLSocket) and client.pending()
        ready = [client] if pending else select.select([client, server], [], [])[0]
        for source in ready:
            data = source.recv(65536)
            if not data:
                return
            (server if source is client else client).sendall(data)
