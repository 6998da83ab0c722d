"""An S3 server with configurable faults, which a real server cannot produce on demand."""

import base64
import contextlib
import hashlib
import itertools
import socket
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

BUCKET = "bucket"
PAGE_KEYS = 1000


@dataclass
class Stored:
    content: bytes
    etag: str | None = None
    """None for the MD5 of the content."""
    headers: dict[str, str] = field(default_factory=dict)
    listed_size: int = -1
    modified: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    storage_class: str = "STANDARD"

    def __post_init__(self) -> None:
        self.etag = hashlib.md5(self.content).hexdigest() if self.etag is None else self.etag
        self.listed_size = len(self.content) if self.listed_size < 0 else self.listed_size

    @property
    def validators(self) -> dict[str, str]:
        return {"ETag": f'"{self.etag}"', "Last-Modified": format_datetime(self.modified, usegmt=True)}


Fault = Callable[["Handler", Stored], bool]
"""Handles a GET of an object; returns False to let the server send the object."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    """As many as a sync opens at the same time: the kernel lets others try again after a second."""


class FaultyS3:
    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self.refused: set[str] = set()
        """Keys that the caller may not access."""
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        """Faults by key, each used once, in order; "*" for every key, or by request: list, head, put, delete."""
        self.requests: list[str] = []
        """Method, path and range of each request, in order of arrival."""
        self.headers: list[dict[str, str]] = []
        """Headers of each request, by lowercase name."""
        self.latency = 0.0
        self.most_at_once = 0
        self._waiting = 0
        self.page_keys = PAGE_KEYS
        self.bucket_headers: dict[str, str] = {}
        """Headers of the answer to a HEAD of the bucket."""
        self.lock = threading.Lock()
        self.is_over = threading.Event()
        self._connections: set[socket.socket] = set()

    def put(self, key: str, content: bytes, *, etag: str | None = None, **headers: str) -> None:
        self.objects[key] = Stored(content, etag, {name.replace("_", "-"): value for name, value in headers.items()})

    def fail(self, key: str, fault: Fault, times: int = 1) -> None:
        self.faults[key] += [fault] * times

    def wait(self) -> None:
        """Wait for the latency, in parallel with other requests."""
        with self.lock:
            self._waiting += 1
            self.most_at_once = max(self.most_at_once, self._waiting)
        time.sleep(self.latency)
        with self.lock:
            self._waiting -= 1

    def next_fault(self, key: str) -> Fault | None:
        with self.lock:
            for name in (key,) if key in ("list", "head", "put", "delete") else (key, "*"):
                if self.faults[name]:
                    return self.faults[name].pop(0)
        return None

    def gets(self, key: str) -> list[str]:
        return [each for each in self.requests if each.startswith(f"GET /{BUCKET}/{quote(key)}")]

    def page(self, query: dict[str, str]) -> bytes:
        """Return a page of a listing."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        token = query.get("continuation-token", "")
        after = bytes.fromhex(token).decode() if token else query.get("start-after", "")
        entries: dict[str, str] = {}
        for key in sorted(self.objects, key=lambda key: key.encode("utf-8", "surrogateescape")):
            if not key.startswith(prefix) or key <= after:
                continue
            inner = key.removeprefix(prefix)
            if delimiter and delimiter in inner:
                folder = prefix + inner.partition(delimiter)[0] + delimiter
                if folder > after:
                    entries[folder] = f"<CommonPrefixes><Prefix>{_quoted(folder)}</Prefix></CommonPrefixes>"
            else:
                stored = self.objects[key]
                entries[key] = (
                    f"<Contents><Key>{_quoted(key)}</Key><LastModified>{stored.modified.isoformat()}</LastModified>"
                    f"<ETag>&quot;{stored.etag}&quot;</ETag><Size>{stored.listed_size}</Size>"
                    f"<StorageClass>{stored.storage_class}</StorageClass></Contents>"
                )
            if len(entries) > self.page_keys:
                break
        shown = list(entries.items())[: self.page_keys]
        more = len(entries) > len(shown)
        following = f"<NextContinuationToken>{shown[-1][0].encode().hex()}</NextContinuationToken>" if more else ""
        body = (
            '<?xml version="1.0"?><ListBucketResult><EncodingType>url</EncodingType>'
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{following}"
            f"{''.join(xml for _, xml in shown)}</ListBucketResult>"
        )
        return body.encode()

    @contextlib.contextmanager
    def serving(self, tls: ssl.SSLContext | None = None, port: int = 0) -> Iterator[str]:
        self.is_over.clear()
        server = _Server(("127.0.0.1", port), type("BoundHandler", (Handler,), {"store": self}))
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
        finally:
            self.is_over.set()
            server.shutdown()
            server.server_close()
            for connected in list(self._connections):  # clients keep theirs open
                with contextlib.suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    store: FaultyS3
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.store._connections.add(self.connection)

    def finish(self) -> None:
        self.store._connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        key = self._key()
        span = self.headers.get("Range", "")
        self.store.requests.append(f"{self.command} {self.path} {span}".strip())
        self.store.headers.append({name.lower(): value for name, value in self.headers.items()})
        self.store.wait()
        query = self.query()
        if "list-type" in query:
            self._list(query)
        elif not key:
            self.answer(200, b"", self.store.bucket_headers)
        elif key in self.store.refused:
            self.error(403, "AccessDenied")
        elif key not in self.store.objects:
            self.error(404, "NoSuchKey")
        else:
            self._get(key, self.store.objects[key])

    def do_PUT(self) -> None:
        key = self._key()
        self.store.requests.append(f"PUT {self.path}")
        sent = Stored(self.rfile.read(int(self.headers["Content-Length"])))
        fault = self.store.next_fault("put")
        if fault is not None and fault(self, sent):
            return
        with self.store.lock:
            there = self.store.objects.get(key)
            match, none_match = self.headers.get("If-Match"), self.headers.get("If-None-Match")
            if (match and (there is None or match.strip('"') != there.etag)) or (none_match and there is not None):
                self.error(412, "PreconditionFailed")
                return
            self.store.objects[key] = sent
        self.answer(200, b"", {"ETag": f'"{sent.etag}"'})

    def do_DELETE(self) -> None:
        self.store.requests.append(f"DELETE {self.path}")
        fault = self.store.next_fault("delete")
        if fault is not None and fault(self, self.store.objects.get(self._key(), Stored(b""))):
            return
        self.store.objects.pop(self._key(), None)
        self.send_response(204)
        self.end_headers()

    def query(self) -> dict[str, str]:
        parsed = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return {name: values[0] for name, values in parsed.items()}

    def answer_until_closed(self, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Answer without a length, as HTTP/1.0 did: the body ends with the connection."""
        self.send_response(200)
        for name, value in {**(headers or {}), "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").removeprefix("/")

    def _get(self, key: str, stored: Stored) -> None:
        fault = self.store.next_fault(key if self.command == "GET" else "head")
        if fault is not None and fault(self, stored):
            return
        stored = self.store.objects[key]
        since = self.headers.get("If-Unmodified-Since")
        is_later = since is not None and stored.modified > parsedate_to_datetime(since)
        if self.headers.get("If-Match", stored.etag).strip('"') != stored.etag or is_later:
            self.error(412, "PreconditionFailed")
            return
        self.send_object(stored, stored.content)

    def send_object(self, stored: Stored, content: bytes, *, cut: int | None = None) -> None:
        """Send the requested range of the content, but only its first `cut` bytes."""
        status, headers = 200, {**stored.validators, **stored.headers}
        if span := self.headers.get("Range"):
            first, _, last = span.removeprefix("bytes=").partition("-")
            if int(first) >= len(content):
                self.error(416, "InvalidRange")
                return
            end = min(int(last) + 1 if last else len(content), len(content))
            headers = {**stored.validators, "Content-Range": f"bytes {first}-{end - 1}/{len(content)}"}
            status, content = 206, content[int(first) : end]
        self.answer(status, content, headers, cut=cut)

    def answer(
        self, status: int, body: bytes, headers: dict[str, str], *, cut: int | None = None, withheld: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD" or withheld:
            return
        with contextlib.suppress(OSError):  # the reader is gone
            self.wfile.write(body[:cut])
            self.wfile.flush()
            if cut is not None:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True

    def error(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}!</Message></Error>"
        self.answer(status, body.encode(), {"Content-Type": "application/xml", **(headers or {})})

    def _list(self, query: dict[str, str]) -> None:
        fault = self.store.next_fault("list")
        if fault is None or not fault(self, Stored(b"")):
            self.answer(200, self.store.page(query), {"Content-Type": "application/xml"})

    def log_message(self, *unused: object) -> None:
        pass


def _quoted(key: str) -> str:
    return quote(key.encode("utf-8", "surrogateescape"), safe="/")


def base64_of(hexadecimal: str) -> str:
    return base64.b64encode(bytes.fromhex(hexadecimal)).decode()


# Faults


FLIPS = itertools.count()


def flipped(handler: Handler, stored: Stored) -> bool:
    """Send the content with flipped bits, other ones each time."""
    handler.send_object(stored, _flipped(stored.content, next(FLIPS) % 255 + 1))
    return True


def damaged(handler: Handler, stored: Stored) -> bool:
    """Send the content with the same flipped bits each time."""
    handler.send_object(stored, _flipped(stored.content, 1))
    return True


def _flipped(content: bytes, bits: int) -> bytes:
    return content.translate(bytes(each ^ bits for each in range(256)))


def cut_short(after: int) -> Fault:
    def fault(handler: Handler, stored: Stored) -> bool:
        handler.send_object(stored, stored.content, cut=after)
        return True

    return fault


def refused(status: int, code: str, headers: dict[str, str] | None = None) -> Fault:
    def fault(handler: Handler, _: Stored) -> bool:
        handler.error(status, code, headers)
        return True

    return fault


def silent(handler: Handler, stored: Stored) -> bool:
    """Send the headers but no body."""
    length = str(len(stored.content) or 1000)
    handler.answer(200, stored.content, {"ETag": f'"{stored.etag}"', "Content-Length": length}, withheld=True)
    handler.store.is_over.wait()
    return True


def slow(handler: Handler, stored: Stored) -> bool:
    """Send a byte at a time, slowly."""
    handler.answer(200, stored.content, {"ETag": f'"{stored.etag}"'}, withheld=True)
    with contextlib.suppress(OSError):
        while not handler.store.is_over.wait(0.2):
            handler.wfile.write(b"x")
    return True


def ignores_range(handler: Handler, stored: Stored) -> bool:
    """Send the whole object, ignoring range and conditions."""
    handler.answer(200, stored.content, {"ETag": f'"{stored.etag}"'})
    return True


def early_hints(handler: Handler, _: Stored) -> bool:
    """Send an interim answer before the final one."""
    handler.wfile.write(b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n")
    return False


def surplus(handler: Handler, stored: Stored) -> bool:
    """Send another answer after the one to the request."""
    both = stored.content + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    handler.answer(200, both, {**stored.validators, "Content-Length": str(len(stored.content))})
    return True


def first_slice(handler: Handler, stored: Stored) -> bool:
    """Answer every range with the beginning of the object, as a broken cache does."""
    first, _, last = handler.headers["Range"].removeprefix("bytes=").partition("-")
    length = int(last) + 1 - int(first)
    span = f"bytes 0-{length - 1}/{len(stored.content)}"
    handler.answer(206, stored.content[:length], {"ETag": f'"{stored.etag}"', "Content-Range": span})
    return True


def until_closed(handler: Handler, stored: Stored) -> bool:
    """Send the content without its length."""
    handler.answer_until_closed(stored.content, stored.validators)
    return True


def replaced(key: str, content: bytes) -> Fault:
    """Replace the object just before it is read."""

    def fault(handler: Handler, _: Stored) -> bool:
        handler.store.put(key, content)
        return False

    return fault


# Faults of listings


def list_page(changed: Callable[[bytes], bytes]) -> Fault:
    """List with a changed page."""

    def fault(handler: Handler, _: Stored) -> bool:
        handler.answer(200, changed(handler.store.page(handler.query())), {"Content-Type": "application/xml"})
        return True

    return fault


# Faults of writes


def ignores_conditions(*names: str) -> Fault:
    def fault(handler: Handler, _: Stored) -> bool:
        for name in names:
            del handler.headers[name]
        return False

    return fault


def refuses_checksums(handler: Handler, _: Stored) -> bool:
    """Refuse the headers that botocore sends by default, as servers of before 2025 do."""
    if "x-amz-sdk-checksum-algorithm" not in handler.headers:
        return False
    handler.error(400, "InvalidArgument")
    return True
