"""A proxy before any HTTP server that damages, delays or refuses its answers on demand."""

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import urllib3

HOP_BY_HOP = {"transfer-encoding", "connection", "content-length", "keep-alive"}
FLIPS = itertools.count(1)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    cut: int | None = None
    """Number of bytes after which the connection is closed."""


Fault = Callable[[Answer], Answer]


@dataclass
class FaultyHttp:
    upstream: str
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    """Faults of the requests whose method and target contain a text, each used once, in order."""
    requests: list[str] = field(default_factory=list)
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(self, text: str, *faults: Fault) -> None:
        self.faults.setdefault(text, []).extend(faults)

    def fault_of(self, request: str) -> Fault | None:
        with self.lock:
            self.requests.append(request)
            waiting = (faults for text, faults in self.faults.items() if text in request and faults)
            return next((faults.pop(0) for faults in waiting), None)

    @contextlib.contextmanager
    def serving(self) -> Iterator["FaultyHttp"]:
        with urllib3.PoolManager(maxsize=16) as pool, serving(_Handler, proxy=self, pool=pool) as self.url:
            yield self


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients may close connections."""


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler], **bound: object) -> Iterator[str]:
    """Serve with this handler, whose class has these attributes, and yield the URL."""
    server = _Server(type("Bound", (handler,), bound))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        for connected in server.connections:  # clients keep theirs open
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultyHttp
    pool: urllib3.PoolManager
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        sent = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        fault = self.proxy.fault_of(f"{self.command} {unquote(self.path)} {self.headers.get('Range', '')}".strip())
        response = self.pool.request(
            self.command, self.proxy.upstream + self.path, headers=sent, body=body, redirect=False, decode_content=False
        )
        headers = {name: value for name, value in response.headers.items() if name.lower() not in HOP_BY_HOP}
        answer = Answer(response.status, headers, response.data)
        self.send(fault(answer) if fault else answer, response.headers.get("content-length"))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward  # noqa: N815 - http.server's names

    def send(self, answer: Answer, length: str | None) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        is_head = self.command == "HEAD" and length
        self.send_header("Content-Length", length if is_head and length else str(len(answer.body)))
        self.end_headers()
        with contextlib.suppress(OSError):  # the reader is gone
            self.wfile.write(answer.body[: answer.cut])
            if answer.cut is not None:
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def flipped(answer: Answer) -> Answer:
    """Flip bits, other ones each time."""
    bits = next(FLIPS) % 255 + 1
    return Answer(answer.status, answer.headers, answer.body.translate(bytes(each ^ bits for each in range(256))))


def cut_short(after: int) -> Fault:
    return lambda answer: Answer(answer.status, answer.headers, answer.body, cut=after)


def shortened(answer: Answer) -> Answer:
    """Send fewer bytes than the object has, as if they were all."""
    return Answer(answer.status, answer.headers, answer.body[:-1])


def lengthened(answer: Answer) -> Answer:
    return Answer(answer.status, answer.headers, answer.body + b"more")


def refused(status: int, **headers: str) -> Fault:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: Answer(status, named, b"{}")


def with_headers(**headers: str) -> Fault:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda answer: Answer(answer.status, {**answer.headers, **named}, answer.body, answer.cut)


def after(change: Callable[[], object]) -> Fault:
    """Change something once this answer is known, before it is sent."""

    def fault(answer: Answer) -> Answer:
        change()
        return answer

    return fault
