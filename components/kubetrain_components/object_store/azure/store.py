"""The blobs of a container of Azure Blob Storage.

Their tags are the ETag and the container: an ETag alone is a time.
"""

import base64
import hashlib
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import quote, unquote, urlencode
from xml.etree import ElementTree

from kubetrain_components.object_store.azure.credentials import sas_token, signer
from kubetrain_components.object_store.http_client import (
    LISTING,
    Headers,
    HttpClient,
    ObjectMissing,
    write_conditionally,
)
from kubetrain_components.object_store.retries import with_retries
from kubetrain_components.object_store.store import Access, ObjectContent, StoredObject, beginning_of_keys

REMEDY = (
    "check AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or that the identity has the role Storage Blob Data Reader "
    "(Contributor to write)"
)
PAGE_BLOBS = "5000"
BLOCK_BYTES = 16 << 20
"""Larger files are written in blocks of this size, of which a blob can have 50,000."""
BLOCK_BLOB = {"x-ms-blob-type": "BlockBlob"}


class AzureStore:
    def __init__(
        self,
        account: str,
        container: str,
        prefix: str,
        access: Access = Access.CREDENTIALS,
        *,
        was_reached: bool = False,
    ) -> None:
        self.uri = f"az://{account}/{container}/{prefix}"
        self._prefix = beginning_of_keys(prefix)
        server = os.environ.get("AZURE_STORAGE_ENDPOINT", "").rstrip("/") or f"https://{account}.blob.core.windows.net"
        self._container = f"{server}/{container}"
        self._place = f"@{account}/{container}"
        self._sas = sas_token(access)
        self._client = HttpClient(
            "Azure Blob Storage", server, self.uri, REMEDY, signer(account, self.uri, access), was_reached=was_reached
        )

    def list(self) -> Iterator[StoredObject]:
        query = {"restype": "container", "comp": "list", "include": "metadata", "maxresults": PAGE_BLOBS}
        query["prefix"] = self._prefix
        while True:
            _, page = self._client.parsed(self._url(**query), LISTING, _parse)
            yield from (self._described(blob) for blob in page.iter("Blob") if not _is_folder(blob))
            if not (marker := page.findtext("NextMarker")):
                return
            query["marker"] = marker

    def read(self, key: str, etag: str | None = None, start: int = 0, end: int | None = None) -> ObjectContent:
        condition = {"if-match": self._sent(etag)} if etag else {}
        is_of = partial(self._is_of, etag)
        headers, chunks = self._client.read(self._url(key), f"blob {key!r}", start, end, is_of, condition)
        return ObjectContent(chunks, None if start > 0 or end is not None else _md5_in(headers))

    def checksum(self, key: str, etag: str) -> str | None:
        condition = {"if-match": self._sent(etag)}
        return _md5_in(self._client.body("HEAD", self._url(key), f"blob {key!r}", condition)[0])

    def find(self, key: str) -> StoredObject | None:
        try:
            headers, _ = self._client.body("HEAD", self._url(key), f"blob {key!r}")
        except ObjectMissing:
            return None
        return StoredObject(key, int(headers["content-length"]), self._tag(headers["etag"]))

    def write(self, key: str, content: bytes | Path) -> None:
        if isinstance(content, Path) and content.stat().st_size > BLOCK_BYTES:
            self._write_blocks(key, content)
        else:
            content = content if isinstance(content, bytes) else content.read_bytes()
            with_retries(partial(self._put, key, content, BLOCK_BLOB))

    def write_if(self, key: str, content: bytes, etag: str | None) -> None:
        condition = {"if-match": self._sent(etag)} if etag else {"if-none-match": "*"}
        put = partial(self._put, key, content, {**BLOCK_BLOB, **condition})
        write_conditionally(put, lambda: self.read(key).read() == content)

    def delete(self, key: str) -> None:
        self._client.delete(self._url(key), f"blob {key!r}")

    def _write_blocks(self, key: str, path: Path) -> None:
        names, whole = list[str](), hashlib.md5(usedforsecurity=False)
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                names.append(base64.b64encode(b"%08d" % len(names)).decode())
                whole.update(block)
                with_retries(partial(self._put, key, block, {}, comp="block", blockid=names[-1]))
        listed = "".join(f"<Latest>{name}</Latest>" for name in names)
        md5 = {"x-ms-blob-content-md5": base64.b64encode(whole.digest()).decode()}
        with_retries(partial(self._put, key, f"<BlockList>{listed}</BlockList>".encode(), md5, comp="blocklist"))

    def _put(self, key: str, content: bytes, headers: Mapping[str, str], **query: str) -> None:
        digest = hashlib.md5(content, usedforsecurity=False).digest()
        sent = {**headers, "content-md5": base64.b64encode(digest).decode()}  # the server compares it
        self._client.upload("PUT", self._url(key, **query), f"blob {key!r}", content, sent)

    def _url(self, key: str | None = None, **query: str) -> str:
        name = "" if key is None else f"/{quote(self._prefix + key)}"
        encoded = "&".join(filter(None, (urlencode(query, quote_via=quote), self._sas)))
        return f"{self._container}{name}{f'?{encoded}' if encoded else ''}"

    def _described(self, blob: ElementTree.Element) -> StoredObject:
        name = blob.find("Name")
        assert name is not None, "every blob has a name"
        key = unquote(name.text or "") if name.get("Encoded") == "true" else name.text or ""
        size, etag = (blob.findtext(f"Properties/{each}", "") for each in ("Content-Length", "Etag"))
        return StoredObject(key.removeprefix(self._prefix), int(size), self._tag(etag))

    def _tag(self, etag: str) -> str:
        return etag.strip('"') + self._place

    def _sent(self, tag: str) -> str:
        return f'"{tag.removesuffix(self._place)}"'

    def _is_of(self, tag: str | None, headers: Headers) -> bool:
        return tag in (None, self._tag(headers.get("etag", "")))


def _parse(page: bytes) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(page)  # noqa: S314 - the store could send any bytes in the files themselves
    except ElementTree.ParseError as error:
        raise ValueError(error) from error


def _is_folder(blob: ElementTree.Element) -> bool:
    """Return True for the folders of a hierarchical namespace, which are listed as empty blobs."""
    named = blob.findtext("Properties/ResourceType"), blob.findtext("Metadata/hdi_isfolder")
    return named[0] == "directory" or named[1] == "true"


def _md5_in(headers: Headers) -> str | None:
    encoded = headers.get("content-md5")
    return f"md5:{base64.b64decode(encoded).hex()}" if encoded else None
