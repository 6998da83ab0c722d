"""The files of a dataset on the Hugging Face hub, read only, at one commit.

The hub names the content of a file by a hash: the SHA-256 of a large file (LFS), and git's SHA-1 of a small one.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

from kubetrain_components.object_store.http_client import LISTING, NO_HEADERS, Headers, HttpClient
from kubetrain_components.object_store.store import Access, ObjectContent, StoredObject, StoreError, beginning_of_keys

SERVER = "https://huggingface.co"
REMEDY = (
    "check the name; if the dataset is gated or private, accept its terms on its page, and set HF_TOKEN to a token of "
    "your account"
)
HASH = re.compile(r"\b(?:[0-9a-f]{64}|[0-9a-f]{40})\b")
SHA256_DIGITS = 64
NEXT_CURSOR = re.compile(r'[?&]cursor=([^&>]+)[^>]*>; *rel="?next')
MAX_SMALL_BYTES = 64 << 20
"""The hub stores files of more than 10 MB with LFS."""


class HuggingFaceStore:
    def __init__(
        self,
        dataset: str,
        revision: str,
        folder: str,
        access: Access = Access.CREDENTIALS,
        *,
        was_reached: bool = False,
    ) -> None:
        self.uri = f"hf://datasets/{dataset}{f'@{revision}' if revision else ''}/{folder}"
        self._dataset, self._revision = dataset, unquote(revision) or "main"
        self._folder = beginning_of_keys(folder)
        self._server = os.environ.get("HF_ENDPOINT", "").rstrip("/") or SERVER
        token = "" if access == Access.ANONYMOUS else os.environ.get("HF_TOKEN", "").strip()
        self._client = HttpClient(
            "the Hugging Face hub",
            self._server,
            self.uri,
            REMEDY,
            (lambda _method, _url, headers: {**headers, "authorization": f"Bearer {token}"}) if token else None,
            was_reached=was_reached,
        )
        self._commit = ""

    def list(self) -> Iterator[StoredObject]:
        self._commit = self._find_commit()
        url = self._api("tree", self._commit, quote(self._folder.rstrip("/")))
        query = {"recursive": "true", "expand": "false"}
        while True:
            headers, page = self._client.parsed(f"{url}?{urlencode(query)}", LISTING)
            yield from (self._described(entry) for entry in page if entry["type"] == "file")
            cursor = NEXT_CURSOR.search(headers.get("link", ""))
            if not cursor:
                return
            query["cursor"] = unquote(cursor[1])

    def read(self, key: str, etag: str | None = None, start: int = 0, end: int | None = None) -> ObjectContent:
        self._commit = self._commit or self._find_commit()
        path = quote(f"{self._folder}{key}")
        headers, chunks = self._client.read(
            f"{self._server}/datasets/{self._dataset}/resolve/{self._commit}/{path}",
            f"file {key!r}",
            start,
            end,
            partial(_is_of, etag),
            NO_HEADERS,
        )
        expected = etag or _hash_in(headers)
        if start > 0 or end is not None or not expected:
            return ObjectContent(chunks)
        if len(expected) == SHA256_DIGITS:
            return ObjectContent(chunks, f"sha256:{expected}")
        if int(headers.get("content-length", MAX_SMALL_BYTES)) >= MAX_SMALL_BYTES:
            return ObjectContent(chunks)
        # git's hash begins with the length, so the file is verified here, and by its own SHA-1 from here on.
        content = b"".join(chunks)
        own = _sha1(content) if _sha1(b"blob %d\0" % len(content), content) == expected else expected
        return ObjectContent(iter([content]), f"sha1:{own}")

    def checksum(self, key: str, etag: str) -> str | None:
        return f"sha256:{etag}" if len(etag) == SHA256_DIGITS else None

    def find(self, key: str) -> StoredObject | None:
        return next((item for item in self.list() if item.key == key), None)

    def write(self, key: str, content: bytes | Path) -> None:
        self._refuse_writes()

    def write_if(self, key: str, content: bytes, etag: str | None) -> None:
        self._refuse_writes()

    def delete(self, key: str) -> None:
        self._refuse_writes()

    def _refuse_writes(self) -> None:
        raise StoreError(f"{self.uri} is only read: write to s3://, gs:// or az://")

    def _find_commit(self) -> str:
        url = f"{self._api('revision', quote(self._revision, safe=''))}?{urlencode({'expand[]': 'sha'})}"
        return str(self._client.parsed(url, LISTING)[1]["sha"])

    def _api(self, *parts: str) -> str:
        return "/".join([f"{self._server}/api/datasets/{self._dataset}", *filter(None, parts)])

    def _described(self, entry: dict[str, Any]) -> StoredObject:
        known = entry.get("lfs") or entry
        return StoredObject(entry["path"].removeprefix(self._folder), known["size"], known["oid"])


def _is_of(etag: str | None, headers: Headers) -> bool:
    """Return False if the hub says that the content is another one; mirrors may not say what it is."""
    return etag is None or _hash_in(headers) in ("", etag)


def _hash_in(headers: Headers) -> str:
    found = HASH.search(headers.get("x-linked-etag") or headers.get("etag", ""))
    return found[0] if found else ""


def _sha1(*parts: bytes) -> str:
    return hashlib.sha1(b"".join(parts), usedforsecurity=False).hexdigest()
