"""A Kubernetes API server that fails on request, in ways that a real one cannot be made to."""

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubetrain_components.jobs.local.loopback import free_ports

PODS = "/api/v1/namespaces/tests/pods"
JOBS = ("jobs", "pytorchjobs", "tfjobs", "trainjobs")
COLLECTIONS = ("pods", *JOBS, "services", "configmaps", "trainingruntimes", "events", "localqueues", "workflows")
PRECONDITIONS = ("uid", "resourceVersion")
BEGINNING = 1_780_000_000
LOG_PATH = re.compile(rf"{PODS}/([^/]+)/log")
GROUP_PATH = re.compile("/apis/[^/]+/[^/]+")

Fault = Callable[["Handler"], bool]
"""Returns True if it has answered the request, False if the server must."""


def stamp(seconds: float) -> str:
    whole = datetime.fromtimestamp(int(BEGINNING + seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{round(seconds % 1 * 1_000_000_000):09d}Z"


@dataclass
class Run:
    """The output of one run of a container: lines with timestamps; the last may be unfinished."""

    lines: list[bytes] = field(default_factory=list)
    is_over: bool = False


@dataclass(frozen=True)
class Change:
    """A change of an object."""

    version: int
    collection: str
    before: dict[str, Any] | None
    """None: it was created."""
    after: dict[str, Any] | None
    """None: it was deleted."""

    def event(self, is_selected: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
        """Return what a watch with a selector is told: an object that is no longer selected is deleted for it."""
        if self.after and is_selected(self.after):
            is_known = self.before is not None and is_selected(self.before)
            return {"type": "MODIFIED" if is_known else "ADDED", "object": self.after}
        if self.before and is_selected(self.before):
            metadata = {**self.before["metadata"], "resourceVersion": str(self.version)}
            return {"type": "DELETED", "object": {**self.before, "metadata": metadata}}
        return None


class ApiServer:
    def __init__(self, handler: "type[Handler] | None" = None, tls: ssl.SSLContext | None = None) -> None:
        self._handler = handler or Handler
        self.tls = tls
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 1
        self.forgotten = 0
        """No watch can continue from a version before this one."""
        self.tells_410_late = False
        """Whether a 410 is reported in an event, after the watch has begun."""
        self.runs: dict[str, list[Run]] = {}
        """Runs of each pod's container, by name of the pod."""
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[Any] = []
        self.users: list[str] = []
        """Common names of the client certificates, by request; empty without one."""
        self.connections = 0
        self.changed = threading.Condition()
        self.is_over = False
        self._changes: list[Change] = []
        self._faults: list[tuple[str, Fault]] = []
        self._sockets: set[socket.socket] = set()
        self._port = free_ports(1)[0]
        self._server: _Server | None = None

    def __enter__(self) -> "ApiServer":
        self.listen()
        return self

    def __exit__(self, *unused: object) -> None:
        self.is_over = True
        self.refuse()

    def listen(self) -> None:
        self._server = _Server(("127.0.0.1", self._port), self._handler)
        self._server.api = self
        if self.tls is not None:  # each handshake in the thread of its connection
            self._server.socket = self.tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def is_listening(self) -> bool:
        return self._server is not None

    def refuse(self) -> None:
        """Cut all connections, and refuse new ones until listen() is called."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        self.cut_all()

    def cut_all(self) -> None:
        for connected in list(self._sockets):
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self._port}"

    def kubeconfig(self, directory: Path, token: str = "secret") -> Path:
        path = directory / "kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "it", "cluster": {"server": self.url}}],
                    "users": [{"name": "me", "user": {"token": token}}],
                    "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me", "namespace": "tests"}}],
                    "current-context": "it",
                }
            )
        )
        return path

    def fail(self, request: str, fault: Fault, times: int = 1) -> None:
        """Apply the fault to the next requests that contain this text, in a form such as "GET /path?query"."""
        self._faults += [(request, fault)] * times

    def clear_faults(self) -> None:
        with self.changed:
            self._faults.clear()

    def put(self, path: str, uid: str = "", **content: Any) -> dict[str, Any]:
        """Create or change the object at a path."""
        with self.changed:
            known = self.objects.get(path)
            collection, _, name = path.rpartition("/")
            self.version += 1
            uid = uid or (known["metadata"]["uid"] if known else f"uid-{self.version}")
            metadata = {"creationTimestamp": stamp(0), **content.pop("metadata", {}), "name": name, "uid": uid}
            manifest = {
                "apiVersion": "v1",
                "kind": "Pod",
                **content,
                "metadata": {**metadata, "resourceVersion": str(self.version)},
            }
            self.objects[path] = manifest
            self._tell(collection, known, manifest)
            return manifest

    def serve(self, version: str, *plurals: str) -> None:
        """Serve only these resources of an API group."""
        if f"/apis/{version}" in self.objects:
            self.remove(f"/apis/{version}")
        if plurals:
            resources = [{"name": name} for each in plurals for name in (each, f"{each}/status")]
            self.put(f"/apis/{version}", kind="APIResourceList", resources=resources)

    def remove(self, path: str) -> None:
        with self.changed:
            manifest = self.objects.pop(path)
            self.version += 1
            self._tell(path.rpartition("/")[0], manifest, None)

    def forget(self) -> None:
        """Forget all versions up to now, and end open watches."""
        with self.changed:
            self.version += 1
            self.forgotten = self.version
            self._changes.clear()
        self.cut_all()

    def run(self, pod: str, *, restarts: int = 0) -> Run:
        """Let the container of a pod run, after this number of restarts."""
        runs = self.runs.setdefault(pod, [])
        runs += [Run() for _ in range(restarts + 1 - len(runs))]
        state = {"name": "main", "restartCount": restarts, "state": {"running": {}}}
        if restarts:
            state["lastState"] = {"terminated": {}}
        self.put(f"{PODS}/{pod}", status={"phase": "Running", "containerStatuses": [state]})
        return runs[-1]

    def write(self, run: Run, *lines: bytes) -> None:
        with self.changed:
            run.lines += lines
            self.changed.notify_all()

    def end(self, pod: str, phase: str = "Succeeded") -> None:
        """End the container of a pod, and with a final phase the pod itself."""
        with self.changed:
            self.runs[pod][-1].is_over = True
            self.changed.notify_all()
        restarts = len(self.runs[pod]) - 1
        state = {"name": "main", "restartCount": restarts, "state": {"terminated": {}}}
        self.put(f"{PODS}/{pod}", status={"phase": phase, "containerStatuses": [state]})

    def events_after(
        self, version: int, collection: str, is_selected: Callable[[dict[str, Any]], bool]
    ) -> list[dict[str, Any]]:
        changes = [each for each in self._changes if each.version > version and each.collection == collection]
        return [event for each in changes if (event := each.event(is_selected))]

    def take_fault(self, request: str) -> Fault | None:
        with self.changed:
            for index, (pattern, fault) in enumerate(self._faults):
                if pattern in request:
                    del self._faults[index]
                    return fault
        return None

    def _tell(self, collection: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        self._changes.append(Change(self.version, collection, before, after))
        self.changed.notify_all()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128
    api: ApiServer

    def handle_error(self, *unused: Any) -> None:
        """Print nothing: tests cut connections on purpose."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    bytes_left: int | None = None
    """Bytes of the body to send before the connection is cut; None: send all."""
    body: Any = None
    """Of the request."""

    @property
    def api(self) -> ApiServer:
        return self.server.api

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.api.connections += 1
        self.api._sockets.add(self.connection)

    def finish(self) -> None:
        self.api._sockets.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, *unused: Any) -> None: ...

    def do_GET(self) -> None:
        self._begin()
        if self._is_answered_by_fault():
            return
        if match := LOG_PATH.fullmatch(self.parts.path):
            self.send_log(match[1])
        elif self.parts.path in self.api.objects:
            self.send_json(200, self.api.objects[self.parts.path])
        elif GROUP_PATH.fullmatch(self.parts.path):
            self.send_bytes(404, b"404 page not found\n")
        elif not self._is_collection():
            self.refuse(404, f'"{self.parts.path}" not found')
        elif "watch" in self.query:
            self._send_events()
        else:
            self._send_list()

    def do_POST(self) -> None:
        self._begin()
        if self._is_answered_by_fault():
            return
        body = self.body
        path = f"{self.parts.path}/{body['metadata']['name']}"
        if path in self.api.objects:
            self.refuse(409, f'"{path}" already exists')
        else:
            self.send_json(201, self.api.put(path, **body))

    def do_PATCH(self) -> None:
        self._begin()
        if self._is_answered_by_fault():
            return
        if (known := self.api.objects.get(self.parts.path)) is None:
            self.refuse(404, "not found")
        elif self._differs(known, self.body.get("metadata", {})):
            self.refuse(409, "the UID in the precondition does not match")
        else:
            self.send_json(200, self.api.put(self.parts.path, **_merged(known, self.body)))

    def do_DELETE(self) -> None:
        self._begin()
        if self._is_answered_by_fault():
            return
        known = self.api.objects.get(self.parts.path)
        if known is None:
            self.refuse(404, "not found")
        elif self._differs(known, self.body.get("preconditions", {})):
            self.refuse(409, "the UID or version in the precondition does not match")
        else:
            self.api.remove(self.parts.path)
            self.send_json(200, {"kind": "Status", "status": "Success"})

    @staticmethod
    def _differs(known: dict[str, Any], wanted: dict[str, Any]) -> bool:
        """Return True if the object is not the one, or not in the version, that the request is for."""
        return any(wanted.get(name, known["metadata"][name]) != known["metadata"][name] for name in PRECONDITIONS)

    def send_json(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        self.send_bytes(status, json.dumps(content).encode(), headers)

    def send_bytes(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content if self.bytes_left is None else content[: self.bytes_left])
        if self.bytes_left is not None:
            self.cut()

    def refuse(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        self.send_json(status, {"kind": "Status", "status": "Failure", "code": status, "message": message}, headers)

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send_chunk(self, content: bytes) -> None:
        if self.bytes_left is not None and len(content) >= self.bytes_left:
            part = content[: self.bytes_left]
            self.wfile.write(f"{len(part) + 1:x}\r\n".encode() + part)
            self.cut()
            raise ConnectionAbortedError
        if self.bytes_left is not None:
            self.bytes_left -= len(content)
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")

    def end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def cut(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def _begin(self) -> None:
        self.parts = urlsplit(self.path)
        self.query = {name: values[-1] for name, values in parse_qs(self.parts.query).items()}
        self.bytes_left = None
        length = int(self.headers.get("Content-Length", "0"))
        self.body = json.loads(self.rfile.read(length)) if length else None
        self.api.bodies.append(self.body)
        self.api.headers.append({name.lower(): value for name, value in self.headers.items()})
        self.api.users.append(_common_name(self.connection))
        self.api.requests.append(f"{self.command} {self.path}")

    def _is_answered_by_fault(self) -> bool:
        fault = self.api.take_fault(f"{self.command} {self.path}")
        return fault is not None and fault(self)

    def _is_collection(self) -> bool:
        return self.parts.path.rsplit("/", 1)[-1] in COLLECTIONS

    def _is_selected(self, item: dict[str, Any]) -> bool:
        """Return True if the item has all labels that are selected, by name or by name and value."""
        labels = item["metadata"].get("labels") or {}
        selected = (each.partition("=") for each in self.query.get("labelSelector", "").split(",") if each)
        return all(labels.get(name) == value if equals else name in labels for name, equals, value in selected)

    def _send_list(self) -> None:
        with self.api.changed:
            path = self.parts.path + "/"
            items = [item for key, item in self.api.objects.items() if key.startswith(path) and self._is_selected(item)]
            version = str(self.api.version)
        bare = [{name: part for name, part in item.items() if name not in ("apiVersion", "kind")} for item in items]
        start, size = int(self.query.get("continue", "0")), int(self.query.get("limit", "0")) or len(bare)
        metadata = {"resourceVersion": version}
        if start + size < len(bare):
            metadata["continue"] = str(start + size)
        items = bare[start : start + size]
        self.send_json(200, {"apiVersion": "v1", "kind": "PodList", "metadata": metadata, "items": items})

    def _send_events(self) -> None:
        version = int(self.query["resourceVersion"])
        is_forgotten = version < self.api.forgotten
        if is_forgotten and not self.api.tells_410_late:
            return self.refuse(410, "too old resource version")
        self.begin_stream()
        if is_forgotten:
            status = {"kind": "Status", "code": 410, "message": "too old resource version"}
            self.send_chunk(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            return self.end_stream()
        end = time.monotonic() + float(self.query["timeoutSeconds"])
        while not self.api.is_over and time.monotonic() < end:
            with self.api.changed:
                if not self._events_after(version):
                    self.api.changed.wait(0.05)
                events = self._events_after(version)
            for event in events:
                version = int(event["object"]["metadata"]["resourceVersion"])
                self.send_chunk(json.dumps(event).encode() + b"\n")
        return self.end_stream()

    def _events_after(self, version: int) -> list[dict[str, Any]]:
        return self.api.events_after(version, self.parts.path, self._is_selected)

    def send_log(self, pod: str) -> None:
        runs = self.api.runs.get(pod, [])
        is_previous = "previous" in self.query
        if f"{PODS}/{pod}" not in self.api.objects:
            return self.refuse(404, f'pods "{pod}" not found')
        if len(runs) < 1 + is_previous:
            return self.refuse(400, f'container "main" in pod "{pod}" is waiting to start: ContainerCreating')
        run = runs[-2] if is_previous else runs[-1]
        if "tailLines" in self.query and "timestamps" not in self.query:
            last = run.lines[-int(self.query["tailLines"]) :]
            return self.send_bytes(200, b"".join(line.partition(b" ")[2] for line in last))
        since = self.query.get("sinceTime", "")[:19].encode()
        self.begin_stream()
        sent = 0
        while True:
            with self.api.changed:
                if "follow" in self.query and len(run.lines) == sent and not run.is_over:
                    self.api.changed.wait(0.05)
                lines, is_over = run.lines[sent:], run.is_over or "follow" not in self.query
            wanted = b"".join(line for line in lines if line[:19] >= since)
            if wanted:
                self.send_chunk(wanted)
            sent += len(lines)
            if self.api.is_over or (is_over and sent == len(run.lines)):
                return self.end_stream()


def answer(status: int, message: str = "", **headers: str) -> Fault:
    def fault(handler: Handler) -> bool:
        handler.refuse(status, message, {name.replace("_", "-"): value for name, value in headers.items()})
        return True

    return fault


def not_served(handler: Handler) -> bool:
    """Answer like a server without this kind of object."""
    handler.send_bytes(404, b"404 page not found\n")
    return True


def hang(seconds: float) -> Fault:
    def fault(handler: Handler) -> bool:
        end = time.monotonic() + seconds
        while not handler.api.is_over and time.monotonic() < end:
            time.sleep(0.02)
        handler.cut()
        return True

    return fault


def cut(after_bytes: int) -> Fault:
    """Cut the connection in the body of the response, after doing what was requested."""

    def fault(handler: Handler) -> bool:
        handler.bytes_left = after_bytes
        return False

    return fault


def interrupt(handler: Handler) -> bool:
    """Press Ctrl-C while a request is under way, which is then answered as usual."""
    os.kill(os.getpid(), signal.SIGINT)
    return False


def end_at_once(handler: Handler) -> bool:
    """End a stream like a server that shuts down."""
    handler.begin_stream()
    handler.end_stream()
    return True


def lines_of(numbers: Iterator[int] | range, per_second: int = 100) -> list[bytes]:
    return [f"{stamp(number / per_second)} line {number}\n".encode() for number in numbers]


def _common_name(connection: socket.socket) -> str:
    certificate = connection.getpeercert() if isinstance(connection, ssl.SSLSocket) else None
    return "".join(part[0][1] for part in (certificate or {}).get("subject", ()) if part[0][0] == "commonName")


def _merged(known: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    merged = {**known}
    for name, value in patch.items():
        if isinstance(value, dict):
            merged[name] = _merged(merged.get(name) or {}, value)
        elif value is None:
            merged.pop(name, None)
        else:
            merged[name] = value
    return merged
