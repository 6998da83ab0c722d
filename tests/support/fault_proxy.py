"""A proxy in front of a real API server that answers some requests as servers, gateways and networks do on bad days."""

import contextlib
import http.client
import json
import random
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

WEBHOOK = 'Internal error occurred: failed calling webhook "validator.training-operator.kubeflow.org"'
LOGIN_PAGE = b"<html><body>Please log in</body></html>"
CHUNK_BYTES = 64 << 10

Fault = Callable[["Handler"], bool]
"""Returns True if it has answered the request, False if the API server must."""


def _status(code: int, message: str, **headers: str) -> Fault:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}
    return _page(code, json.dumps(body).encode(), "application/json", **headers)


def _page(code: int, body: bytes, content_type: str, **headers: str) -> Fault:
    def fault(handler: "Handler") -> bool:
        handler.send_response(code)
        for name, value in {"Content-Type": content_type, "Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)
        return True

    return fault


def _cut(handler: "Handler") -> bool:
    handler.cut()
    return True


def _cut_later(handler: "Handler") -> bool:
    """Cut the connection within the answer, after the server has done what was requested."""
    handler.bytes_left = handler.proxy.random.randrange(4000)
    return False


def _garbage(handler: "Handler") -> bool:
    """Put a line into a stream that makes no sense there."""
    handler.garbage = LOGIN_PAGE + b"\n"
    return False


def _delay(handler: "Handler") -> bool:
    time.sleep(handler.proxy.random.uniform(0.2, 5))
    return False


REFUSALS: dict[str, Fault] = {
    "401": _status(401, "Unauthorized"),
    "403": _status(403, 'is forbidden: User "me" cannot get resource "pods" in API group "" in the namespace "n"'),
    "404 default backend": _page(404, b"default backend - 404", "text/plain"),
    "HTML 200": _page(200, LOGIN_PAGE, "text/html"),
}
"""Answers that a launcher may believe if it never got a better one to the same kind of request."""
TROUBLES: dict[str, Fault] = {
    "cut": _cut,
    "cut later": _cut_later,
    "garbage": _garbage,
    "delay": _delay,
    "429": _status(429, "too many requests", Retry_After="1"),
    "500": _status(500, "etcdserver: leader changed"),
    "500 webhook": _status(500, WEBHOOK),
    "503": _status(503, "the server is currently unable to handle the request"),
}


class FaultProxy:
    def __init__(self, kubeconfig: Path, seed: int, share: float) -> None:
        """Let this share of the requests fail."""
        self.random, self.share = random.Random(seed), share
        self.injected: Counter[str] = Counter()
        self.requests = 0
        self._accepted: set[tuple[str, str, str]] = set()
        self._lock = threading.Lock()
        configuration = yaml.safe_load(kubeconfig.read_text())
        cluster, user = configuration["clusters"][0]["cluster"], configuration["users"][0]["user"]
        self._upstream = urlsplit(cluster["server"]).netloc
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._tls.load_cert_chain(user["client-certificate"], user["client-key"])

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"proxy": self}))
        server.daemon_threads = True
        server.handle_error = lambda *unused: None  # type: ignore[method-assign]  # connections are cut on purpose
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self._upstream, context=self._tls, timeout=90)

    def choose(self, operation: tuple[str, str, str]) -> Fault | None:
        with self._lock:
            self.requests += 1
            if self.random.random() >= self.share:
                return None
            faults = {**TROUBLES, **REFUSALS} if operation in self._accepted else TROUBLES
            name = self.random.choice(sorted(faults))
            self.injected[name] += 1
            return faults[name]

    def accept(self, operation: tuple[str, str, str]) -> None:
        with self._lock:
            self._accepted.add(operation)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: FaultProxy

    def do_GET(self) -> None:
        self.bytes_left: int | None = None
        self.garbage = b""
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        operation = (self.headers.get("Authorization", ""), self.command, _kind(self.path))
        fault = self.proxy.choose(operation)
        if fault is not None and fault(self):
            return
        upstream = self.proxy.connect()
        try:
            self._forward(upstream, body, operation)
        except (OSError, http.client.HTTPException):
            self.cut()  # the API server's own troubles, or a client that has left
        finally:
            upstream.close()

    def do_POST(self) -> None:
        self.do_GET()

    def do_PATCH(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        self.do_GET()

    def _forward(self, upstream: http.client.HTTPSConnection, body: bytes, operation: tuple[str, str, str]) -> None:
        skipped = ("authorization", "host", "connection", "content-length")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in skipped}
        upstream.request(self.command, self.path, body or None, headers)
        answer = upstream.getresponse()
        if answer.status < 300:
            self.proxy.accept(operation)
        self.send_response(answer.status)
        for name in ("Content-Type", "Retry-After", "Warning"):
            if value := answer.headers.get(name):
                self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._send(self.garbage if "watch=true" in self.path else b"")
        while chunk := answer.read1(CHUNK_BYTES):
            self._send(chunk)
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, chunk: bytes) -> None:
        if self.bytes_left is not None and len(chunk) > self.bytes_left:
            self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk[: self.bytes_left])
            raise ConnectionAbortedError
        if chunk:
            self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        if self.bytes_left is not None:
            self.bytes_left -= len(chunk)

    def cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *unused: Any) -> None: ...


def _kind(path: str) -> str:
    """Return the kind of object, and whether the request is for one, for its log, or a watch."""
    parts = urlsplit(path).path.partition("/namespaces/")[2].split("/")[1:]
    return "/".join(part if index != 1 else "*" for index, part in enumerate(parts)) + "?watch" * ("watch=true" in path)
