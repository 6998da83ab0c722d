"""A cheap S3 stub: canned objects and listings, S3's checksums, configurable latency.

python benchmarks/stub_server.py --port 9000 --objects 5000 [--checksum crc64nvme] [--latency-ms 30]
    [--latency-kind mixed] [--listing-only]
"""

import argparse
import asyncio
import base64
import os
import re
import signal
import socket
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from urllib.parse import parse_qs, unquote

from awscrt.checksums import crc64nvme
from dataset import BODY_SIZES, PREFIX, Dataset, bodies

WORKERS = 2
PAGE_OBJECTS = 1000
SEND_BUFFER_BYTES = 1 << 20
LATENCY_KINDS = ("steady", "mixed", "late-body")
"""Mixed: some answers come at once, as from a cache. Late body: the head comes at once, as from gateways."""
FAST_ONE_IN = 16
NUMBERS = count()
LATEST_KEY = "\U0010ffff"
MODIFIED = "2026-01-01T00:00:00.000Z"

RANGE = re.compile(rb"\r\nrange: bytes=(\d+)-(\d*)")
IF_MATCH = re.compile(rb'\r\nif-match: "?([^"\r]+)')


@dataclass(frozen=True)
class Body:
    content: bytes
    etag: str
    checksum: str
    """The checksum's header line, for requests that ask for it; empty if the server offers none."""

    def answer(self, head: bytes) -> bytes:
        """Return the response to a request's lower-case head."""
        condition = IF_MATCH.search(head)
        if condition and condition[1].decode() != self.etag:
            return response("412 Precondition Failed", b"", is_head=False)
        is_head, wanted = head.startswith(b"head "), RANGE.search(head)
        if wanted:
            return self._part(int(wanted[1]), int(wanted[2] or len(self.content) - 1), is_head)
        checksum = self.checksum if b"x-amz-checksum-mode: enabled" in head else ""
        return response("200 OK", self.content, self._headers + checksum, is_head)

    def _part(self, start: int, last: int, is_head: bool) -> bytes:
        last = min(last, len(self.content) - 1)
        place = f"Content-Range: bytes {start}-{last}/{len(self.content)}\r\n"
        return response("206 Partial Content", self.content[start : last + 1], self._headers + place, is_head)

    @property
    def _headers(self) -> str:
        return (
            f'ETag: "{self.etag}"\r\nContent-Type: image/jpeg\r\nAccept-Ranges: bytes\r\n'
            "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
        )


def response(status: str, content: bytes, headers: str = "", is_head: bool = False) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nServer: stub\r\nx-amz-request-id: 0\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + (b"" if is_head else content)


class Listing:
    """ListObjectsV2 of a dataset. A page without a delimiter is a slice of text rendered once."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._numbers = range(dataset.objects)
        self._starts = array("Q", [0])
        text = bytearray()
        for number in self._numbers:
            text += self._item(number)
            self._starts.append(len(text))
        self._text = bytes(text)

    def page(self, query: dict[str, str]) -> bytes:
        prefix, limit = query.get("prefix", ""), min(int(query.get("max-keys", PAGE_OBJECTS)), PAGE_OBJECTS)
        first, end = self._first(query, prefix), self._at(prefix + LATEST_KEY)
        if query.get("delimiter") == "/":
            items, folders, following = self._folded(first, end, prefix, limit)
        else:
            following = max(first, min(first + limit, end))
            items, folders = self._items(first, following), []
        count = len(folders) + (following - first if not query.get("delimiter") else items.count(b"<Key>"))
        return self._document(prefix, count, following if following < end else None, items, folders)

    def _first(self, query: dict[str, str], prefix: str) -> int:
        if "continuation-token" in query:
            return int(query["continuation-token"])
        first = self._at(prefix)
        return max(first, self._at(query["start-after"] + "\0")) if "start-after" in query else first

    def _at(self, key: str) -> int:
        return bisect_left(self._numbers, key, key=self._key)

    def _key(self, number: int) -> str:
        return f"{PREFIX}/{self._dataset.key(number)}"

    def _items(self, first: int, end: int) -> bytes:
        return self._text[self._starts[first] : self._starts[end]]

    def _folded(self, first: int, end: int, prefix: str, limit: int) -> tuple[bytes, list[str], int]:
        """Return the items, the folders, and the number at which the next page starts."""
        items, folders, number = bytearray(), list[str](), first
        for _ in range(limit):
            if number >= end:
                break
            folder, slash, _ = self._key(number)[len(prefix) :].partition("/")
            if slash:
                folders.append(f"{prefix}{folder}/")
                number = self._at(folders[-1] + LATEST_KEY)
            else:
                items += self._items(number, number + 1)
                number += 1
        return bytes(items), folders, number

    def _item(self, number: int) -> bytes:
        return (
            f"<Contents><Key>{self._key(number)}</Key><LastModified>{MODIFIED}</LastModified>"
            f"<ETag>&quot;{self._dataset.etag(number)}&quot;</ETag><ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm>"
            f"<ChecksumType>FULL_OBJECT</ChecksumType><Size>{self._dataset.body_size(number)}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        ).encode()

    @staticmethod
    def _document(prefix: str, count: int, following: int | None, items: bytes, folders: list[str]) -> bytes:
        token = "" if following is None else f"<NextContinuationToken>{following}</NextContinuationToken>"
        return b"".join(
            [
                b'<?xml version="1.0" encoding="UTF-8"?>\n',
                b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>benchmark</Name>',
                f"<Prefix>{prefix}</Prefix><KeyCount>{count}</KeyCount><MaxKeys>{PAGE_OBJECTS}</MaxKeys>".encode(),
                f"<IsTruncated>{str(following is not None).lower()}</IsTruncated>{token}".encode(),
                items,
                *(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>".encode() for folder in folders),
                b"</ListBucketResult>",
            ]
        )


@dataclass(frozen=True)
class Stub:
    listing: Listing
    bodies: tuple[Body, ...]
    """None if objects can only be listed."""

    def answer(self, head: bytes) -> bytes:
        """Return the response to one request's head."""
        path, _, query = head.split(b" ", 2)[1].decode().partition("?")
        _, _, key = unquote(path).lstrip("/").partition("/")
        if key:
            return self._object(key, head.lower())
        values = {name: value[-1] for name, value in parse_qs(query).items()}
        if values.get("list-type") == "2":
            return response("200 OK", self.listing.page(values), "Content-Type: application/xml\r\n")
        return response("200 OK" if head.startswith(b"HEAD ") else "501 Not Implemented", b"")

    def _object(self, key: str, head: bytes) -> bytes:
        if not self.bodies or not key.endswith(".jpg"):
            return response("404 Not Found", b"")
        return self.bodies[Dataset.number_of(key) % len(self.bodies)].answer(head)


class Connection(asyncio.Protocol):
    def __init__(self, answer: Callable[[bytes], bytes], latency_seconds: float, kind: str) -> None:
        self._answer = answer
        self._latency_seconds = latency_seconds
        self._kind = kind
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # Large enough for a whole response, so one system call sends it.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            self._send(self._answer(head))

    def _send(self, content: bytes) -> None:
        if not self._latency_seconds or (self._kind == "mixed" and next(NUMBERS) % FAST_ONE_IN == 0):
            self._transport.write(content)
            return
        early = content.find(b"\r\n\r\n") + 4 if self._kind == "late-body" else 0
        if early:
            self._transport.write(content[:early])
        asyncio.get_running_loop().call_later(self._latency_seconds, self._transport.write, content[early:])


def checksum_header(algorithm: str, content: bytes) -> str:
    if not algorithm:
        return ""
    value = zlib.crc32(content).to_bytes(4) if algorithm == "crc32" else crc64nvme(content).to_bytes(8)
    encoded = base64.b64encode(value).decode()
    return f"x-amz-checksum-{algorithm}: {encoded}\r\nx-amz-checksum-type: FULL_OBJECT\r\n"


async def serve(port: int, answer: Callable[[bytes], bytes], latency_seconds: float, kind: str) -> None:
    connection = partial(Connection, answer, latency_seconds, kind)
    # Each worker has its own socket on the port; the kernel distributes connections.
    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", port, reuse_port=True, backlog=512)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description="A stub of S3.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--objects", type=int, required=True)
    parser.add_argument("--object-bytes", type=int, default=0, help="size of each object (default: about 100 KB)")
    parser.add_argument("--checksum", choices=["crc64nvme", "crc32"], default="")
    parser.add_argument("--latency-ms", type=float, default=0)
    parser.add_argument("--latency-kind", choices=LATENCY_KINDS, default="steady")
    parser.add_argument("--listing-only", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    dataset = Dataset(options.objects, (options.object_bytes,) if options.object_bytes else BODY_SIZES)
    made = [
        Body(content, dataset.etag(number), checksum_header(options.checksum, content))
        for number, content in enumerate(bodies(dataset.body_sizes))
        if not options.listing_only
    ]
    stub = Stub(Listing(dataset), tuple(made))
    for _ in range(WORKERS - 1):
        if os.fork() == 0:
            break
    asyncio.run(serve(options.port, stub.answer, options.latency_ms / 1000, options.latency_kind))


if __name__ == "__main__":
    main()
