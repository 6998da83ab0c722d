"""The objects of a bucket of Google Cloud Storage.

Their tags are the generation and the CRC-32C: a generation alone is a time.
"""

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from kubetrain_components.object_store.checksums import HASHERS, checksum_of
from kubetrain_components.object_store.gcs.credentials import signer
from kubetrain_components.object_store.http_client import (
    LISTING,
    Headers,
    HttpClient,
    ObjectMissing,
    write_conditionally,
)
from kubetrain_components.object_store.retries import with_retries
from kubetrain_components.object_store.store import (
    Access,
    ObjectContent,
    StoredObject,
    StoreUnavailable,
    beginning_of_keys,
)

SERVER = "https://storage.googleapis.com"
REMEDY = "check the roles of the account on the bucket"
PAGE_OBJECTS = "1000"
FIELDS = "name,size,generation,crc32c"
AS_STORED = {"accept-encoding": "gzip"}
"""The server would unpack objects that were uploaded with gzip."""
CRC32C = re.compile("crc32c=([^,]+)")


class GcsStore:
    def __init__(
        self, bucket: str, prefix: str, access: Access = Access.CREDENTIALS, *, was_reached: bool = False
    ) -> None:
        self.uri = f"gs://{bucket}/{prefix}"
        self._prefix = beginning_of_keys(prefix)
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
        self._server = SERVER if not emulator else emulator if "://" in emulator else f"http://{emulator}"
        self._bucket = f"storage/v1/b/{bucket}/o"
        is_anonymous = emulator or access == Access.ANONYMOUS
        self._client = HttpClient(
            "Google Cloud Storage",
            self._server,
            self.uri,
            REMEDY,
            was_reached=was_reached,
            sign=None if is_anonymous else signer(self.uri, pays=access == Access.REQUESTER_PAYS),
        )

    def list(self) -> Iterator[StoredObject]:
        query = {"prefix": self._prefix, "fields": f"nextPageToken,items({FIELDS})", "maxResults": PAGE_OBJECTS}
        while True:
            _, page = self._client.parsed(self._url(**query), LISTING)
            yield from map(self._described, page.get("items", []))
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    def read(self, key: str, etag: str | None = None, start: int = 0, end: int | None = None) -> ObjectContent:
        url = self._url(key, alt="media")
        headers, chunks = self._client.read(url, f"object {key!r}", start, end, partial(_is_of, etag), AS_STORED)
        is_part = start > 0 or end is not None
        return ObjectContent(chunks, None if is_part else _checksum_in(_tag_in(headers)))

    def checksum(self, key: str, etag: str) -> str | None:
        return _checksum_in(etag)

    def find(self, key: str) -> StoredObject | None:
        try:
            return self._described(self._client.parsed(self._url(key, fields=FIELDS), f"object {key!r}")[1])
        except ObjectMissing:
            return None

    def write(self, key: str, content: bytes | Path) -> None:
        with_retries(partial(self._upload, key, content))

    def write_if(self, key: str, content: bytes, etag: str | None) -> None:
        generation = etag.partition("-")[0] if etag else "0"
        upload = partial(self._upload, key, content, ifGenerationMatch=generation)
        write_conditionally(upload, lambda: self.read(key).read() == content)

    def delete(self, key: str) -> None:
        self._client.delete(self._url(key), f"object {key!r}")

    def _upload(self, key: str, content: bytes | Path, **condition: str) -> None:
        query = urlencode({"uploadType": "media", "name": self._prefix + key, "fields": FIELDS, **condition})
        what, url = f"object {key!r}", f"{self._server}/upload/{self._bucket}?{query}"
        described = json.loads(self._client.upload("POST", url, what, content))
        if _hex(described["crc32c"]) != _crc32c_of(content):
            raise StoreUnavailable(f"{what} of {self.uri} arrived corrupt: check the network")

    def _url(self, key: str | None = None, **query: str) -> str:
        name = "" if key is None else f"/{quote(self._prefix + key, safe='')}"
        return f"{self._server}/{self._bucket}{name}?{urlencode(query)}"

    def _described(self, item: Mapping[str, Any]) -> StoredObject:
        tag = f"{item['generation']}-{_hex(item['crc32c'])}"
        return StoredObject(item["name"].removeprefix(self._prefix), int(item["size"]), tag)


def _is_of(etag: str | None, headers: Headers) -> bool:
    return etag in (None, _tag_in(headers))


def _tag_in(headers: Headers) -> str:
    crc = CRC32C.search(headers.get("x-goog-hash", ""))
    return f"{headers.get('x-goog-generation', '')}-{_hex(crc[1]) if crc else ''}"


def _checksum_in(tag: str) -> str | None:
    digits = tag.partition("-")[2]
    return f"crc32c:{digits}" if digits else None


def _hex(encoded: str) -> str:
    return base64.b64decode(encoded).hex()


def _crc32c_of(content: bytes | Path) -> str:
    if isinstance(content, Path):
        return checksum_of(content, "crc32c").partition(":")[2]
    hasher = HASHERS["crc32c"]()
    hasher.update(content)
    return hasher.hexdigest()
