"""The objects of an S3 bucket."""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    SSOError,
    TokenRetrievalError,
)

from kubetrain_components.object_store.checksums import HASHERS, LOOKS_LIKE_MD5
from kubetrain_components.object_store.ranges import range_problem, slice_chunks
from kubetrain_components.object_store.retries import with_retries
from kubetrain_components.object_store.s3.etags import (
    MODIFIED,
    PLACEHOLDERS,
    condition,
    etag_of,
    is_of,
    place_of,
    placed,
)
from kubetrain_components.object_store.s3.http_head import ConnectionFailed, Headers
from kubetrain_components.object_store.s3.listing import list_objects
from kubetrain_components.object_store.s3.listing_page import check_page
from kubetrain_components.object_store.s3.refusals import Place, RequestRefused, translated
from kubetrain_components.object_store.s3.requests import S3Requests
from kubetrain_components.object_store.store import (
    Access,
    AccessRefused,
    ObjectChanged,
    ObjectContent,
    StoredObject,
    StoreError,
    StoreUnavailable,
    beginning_of_keys,
)
from kubetrain_trainer.errors import InvalidSetting

if TYPE_CHECKING:
    from kubetrain_components.object_store.s3.writer import S3Writer

NEEDS_LOGIN = (SSOError, TokenRetrievalError, NoCredentialsError, PartialCredentialsError)
"""Credentials that do not come back by themselves."""
FAILURES = (RequestRefused, ClientError, BotoCoreError, ConnectionFailed)
ARCHIVED = re.compile(b"<StorageClass>(?:GLACIER|DEEP_ARCHIVE)<")
REQUEST_CHECKSUM = {"x-amz-checksum-mode": "ENABLED"}


class S3Store:
    def __init__(
        self,
        bucket: str,
        prefix: str,
        endpoint_url: str = "",
        access: Access = Access.CREDENTIALS,
        *,
        was_reached: bool = False,
    ) -> None:
        self.uri = f"s3://{bucket}/{prefix}"
        self._bucket = bucket
        self._prefix = beginning_of_keys(prefix)
        self._endpoint_url = endpoint_url
        self._access = access
        self._server = endpoint_url or "AWS"
        self._was_reached = was_reached
        self._place = Place(bucket, self.uri, self._server)
        try:
            self._requests = S3Requests(bucket, endpoint_url, access)
            self._tag_place = place_of(*self._requests.place, self._prefix)
        except InvalidSetting:
            raise
        except (NoCredentialsError, CredentialRetrievalError) as error:
            raise AccessRefused(
                f"no credentials for {self.uri} ({error}): set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a "
                "profile or role as for other AWS tools; use anonymous access for a public bucket"
            ) from error
        except (BotoCoreError, ValueError) as error:
            raise InvalidSetting(
                f"S3 cannot be used for {self.uri} ({error}): check the endpoint URL, AWS_PROFILE and the AWS settings"
            ) from error

    def list(self) -> Iterator[StoredObject]:
        self._place.archived = 0
        with self._translated_errors("the listing"):
            yield from (placed(item, self._tag_place) for item in list_objects(self._page, self._prefix))

    def read(self, key: str, etag: str | None = None, start: int = 0, end: int | None = None) -> ObjectContent:
        is_part = start > 0 or end is not None
        if end is not None and end <= start:
            raise StoreError(f"object {key!r} of {self.uri} has no byte from {start} to {end}")
        headers = {"range": f"bytes={start}-{'' if end is None else end - 1}"} if is_part else REQUEST_CHECKSUM
        with self._translated_errors(f"object {key!r}"):
            response = self._requests.send("GET", self._prefix + key, headers={**headers, **condition(etag)})
            chunks = self._chunks_with_translated_errors(key, self._requests.body_of(response))
            # Some servers ignore conditions, some ignore ranges, and some send a range with status 200.
            if etag and not is_of(etag, response.headers):
                response.close()
                raise RequestRefused(412, "PreconditionFailed", "another ETag")
            if is_part and response.status == 200 and not response.headers.get("content-range"):
                chunks = slice_chunks(chunks, start, end)
            elif problem := range_problem(response.headers.get("content-range"), start, end):
                response.close()
                raise StoreError(f"object {key!r} of {self.uri}: {problem}")
        checksum, is_etag = (None, False) if is_part else reported_checksum(response.headers, etag)
        return ObjectContent(chunks, checksum, is_etag)

    def checksum(self, key: str, etag: str) -> str | None:
        with self._translated_errors(f"object {key!r}"):
            headers = {**REQUEST_CHECKSUM, **condition(etag)}
            response = self._requests.send("HEAD", self._prefix + key, headers=headers)
            list(self._requests.body_of(response))
            if not is_of(etag, response.headers):
                raise RequestRefused(412, "PreconditionFailed", "another ETag")
        return reported_checksum(response.headers, etag)[0]

    def write(self, key: str, content: bytes | Path) -> None:
        with self._translated_errors(f"object {key!r}"):
            self._writer.write(self._prefix + key, content)

    def find(self, key: str) -> StoredObject | None:
        try:
            with self._translated_errors(f"object {key!r}"):
                size, etag = self._writer.find(self._prefix + key)
        except ObjectChanged:
            return None
        return placed(StoredObject(key, size, etag), self._tag_place)

    def write_if(self, key: str, content: bytes, etag: str | None) -> None:
        retries_before = self._writer.retries
        try:
            with self._translated_errors(f"object {key!r}"):
                self._writer.write_if(self._prefix + key, content, etag)
        except ObjectChanged:
            # The change may be this write: the server made it, but its answer was lost.
            if self._writer.retries == retries_before or not self._holds(key, content):
                raise

    def _holds(self, key: str, content: bytes) -> bool:
        try:
            return with_retries(lambda: self.read(key).read()) == content
        except ObjectChanged:
            return False

    def delete(self, key: str) -> None:
        with self._translated_errors(f"object {key!r}"):
            self._writer.delete(self._prefix + key)

    @cached_property
    def _writer(self) -> "S3Writer":
        # The import takes as long as a thousand small objects, and a sync does not write.
        from kubetrain_components.object_store.s3.writer import S3Writer

        return S3Writer(
            self._bucket, self._endpoint_url, self._access, lambda error: self._translated(error, "a write")
        )

    def _page(self, query: Mapping[str, str]) -> bytes:
        """Return one page of a listing."""
        whole = {**query, "list-type": "2", "encoding-type": "url"}

        def ask() -> bytes:
            with self._translated_errors("the listing"):
                page = b"".join(map(bytes, self._requests.body_of(self._requests.send("GET", query=whole))))
            check_page(page)
            self._place.archived += len(ARCHIVED.findall(page))
            return page

        return with_retries(ask)

    def _chunks_with_translated_errors(self, key: str, chunks: Iterator[memoryview]) -> Iterator[memoryview]:
        with self._translated_errors(f"object {key!r}"):
            yield from chunks

    @contextmanager
    def _translated_errors(self, what: str) -> Iterator[None]:
        try:
            yield
            self._was_reached = True
        except FAILURES as error:
            raise self._translated(error, what) from error

    def _translated(self, error: Exception, what: str) -> StoreError:
        if isinstance(error, RequestRefused):
            self._was_reached = True
            return translated(error, what, self._place)
        if isinstance(error, (*NEEDS_LOGIN, ClientError)):
            return self._without_credentials(error)
        return StoreUnavailable(
            f"cannot reach S3 at {self._server} for {what} of {self.uri} ({error}): check the endpoint and the network",
            was_reached=self._was_reached,
        )

    def _without_credentials(self, error: Exception) -> StoreError:
        message = f"the credentials for {self.uri} cannot be obtained ({error}): check the role, profile or login"
        response = error.response if isinstance(error, ClientError) else {}
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        is_busy = status >= 500 or status == 429 or "Throttl" in response.get("Error", {}).get("Code", "")
        return StoreUnavailable(message) if is_busy else AccessRefused(message)


def reported_checksum(headers: Headers, etag: str | None) -> tuple[str | None, bool]:
    """Return the fastest checksum of the whole object, and whether it is the ETag, which need not be an MD5.

    Args:
        etag: The tag in the listing: a time if the server's ETags say nothing.
    """
    if headers.get("x-amz-checksum-type", "FULL_OBJECT") == "FULL_OBJECT":
        for algorithm in HASHERS:
            encoded = headers.get(f"x-amz-checksum-{algorithm}")
            if encoded and (digest := _hexadecimal(encoded)):
                return f"{algorithm}:{digest}", False
    sent = etag_of(headers).lower()
    says_nothing = sent in PLACEHOLDERS or (etag or "").startswith(MODIFIED) or _is_key_encrypted(headers)
    return (f"md5:{sent}", True) if LOOKS_LIKE_MD5.fullmatch(sent) and not says_nothing else (None, False)


def _hexadecimal(encoded: str) -> str:
    """Return the hex digits; empty for the checksum of a multipart upload, which ends with the number of parts."""
    try:
        return base64.b64decode(encoded, validate=True).hex()
    except binascii.Error:
        return ""


def _is_key_encrypted(headers: Headers) -> bool:
    """Return True if the object is encrypted with a key, so that its ETag looks like an MD5 but is not one."""
    by_server = headers.get("x-amz-server-side-encryption")
    return by_server not in ("", "AES256") or bool(headers.get("x-amz-server-side-encryption-customer-algorithm"))
