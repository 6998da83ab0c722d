"""Writes to a bucket, which are rare enough to use boto3."""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session

from kubetrain_components.object_store.retries import AnnouncedRetries, seconds_to_wait
from kubetrain_components.object_store.s3.etags import PLACEHOLDERS, modified, write_condition
from kubetrain_components.object_store.s3.refusals import RequestRefused
from kubetrain_components.object_store.s3.requests import region_of, region_of_arn
from kubetrain_components.object_store.store import Access, StoreError, StoreUnavailable

# The writer retries by itself: botocore would give up after seconds, and ignores Retry-After.
CONFIG = Config(connect_timeout=5, read_timeout=60, retries={"mode": "standard", "total_max_attempts": 1})
WITHOUT_CHECKSUMS = Config(request_checksum_calculation="when_required", response_checksum_validation="when_required")
OPERATIONS = {
    "PutObject",
    "HeadObject",
    "DeleteObject",
    "CreateMultipartUpload",
    "UploadPart",
    "CompleteMultipartUpload",
    "AbortMultipartUpload",
}
"""Requests to S3: botocore makes others to obtain credentials."""
UNKNOWN_HEADER = {400, 411, 501, "SignatureDoesNotMatch"}
"""How servers refuse the headers of a checksum that they do not know, by status or code."""
# On some machines boto3 would choose its CRT client, which ignores endpoint_url.
TRANSFER = TransferConfig(preferred_transfer_client="classic")


Translate = Callable[[Exception], StoreError]
"""Returns the store's error for one of a request."""


class S3Writer:
    """Writes of which every request, and so every part of a large file, is retried for minutes.

    Raises, in every method:
        RequestRefused: if the response is an error.
        BotoCoreError: if no response arrives.
        ClientError: if the credentials cannot be obtained.
    """

    def __init__(self, bucket: str, endpoint_url: str, access: Access, translate: Translate) -> None:
        self.retries = 0
        """Number of requests that were sent again: the server may have done what it did not confirm."""
        self._translate = translate
        self._bucket = bucket
        self._endpoint_url = endpoint_url
        self._config = CONFIG.merge(Config(signature_version=UNSIGNED)) if access == Access.ANONYMOUS else CONFIG
        self._client = self._connect()
        self._may_omit_checksums = self._client.meta.config.request_checksum_calculation != "when_required"

    def write(self, key: str, content: bytes | Path) -> None:
        if isinstance(content, bytes):
            self._put(Key=key, Body=content)
        else:
            self._upload(key, str(content))

    def write_if(self, key: str, content: bytes, etag: str | None) -> None:
        self._put(Key=key, Body=content, **write_condition(etag))

    def delete(self, key: str) -> None:
        with _translated():
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def find(self, key: str) -> tuple[int, str]:
        """Return the size and the ETag, or the time of the last change if the ETag says nothing."""
        with _translated():
            head = self._client.head_object(Bucket=self._bucket, Key=key)
        etag = head.get("ETag", "").strip('"')
        says_nothing = etag in PLACEHOLDERS and head["ContentLength"] and "LastModified" in head
        return head["ContentLength"], modified(head["LastModified"].isoformat()) if says_nothing else etag

    def _upload(self, key: str, path: str) -> None:
        def upload() -> None:
            self._client.upload_file(path, self._bucket, key, Config=TRANSFER)

        retries_before = self.retries
        try:
            self._send(upload)
        except RequestRefused as refused:
            if refused.code != "NoSuchUpload" or self.retries == retries_before:
                raise
            self._send(upload)  # the server completed it, but its answer was lost

    def _put(self, **arguments: Any) -> None:
        self._send(lambda: self._client.put_object(Bucket=self._bucket, **arguments))

    def _send(self, write: Callable[[], object]) -> None:
        """Write, and omit the checksums that botocore adds if the server seems not to know their headers."""
        try:
            with _translated():
                write()
        except RequestRefused as refused:
            if not self._may_omit_checksums or not UNKNOWN_HEADER & {refused.status, refused.code}:
                raise
            before, self._client = self._client, self._connect(WITHOUT_CHECKSUMS)
            try:
                with _translated():
                    write()
            except RequestRefused:
                self._client = before
                raise refused from None
        self._may_omit_checksums = False

    def _connect(self, config: Config | None = None) -> Any:
        session = Session()
        session.register_component("data_loader", _loader())
        client = boto3.session.Session(botocore_session=session).client(
            "s3",
            endpoint_url=self._endpoint_url or None,
            region_name=region_of_arn(self._bucket) or region_of(session),
            config=self._config.merge(config) if config else self._config,
        )
        client.meta.events.register("needs-retry.s3", self._pause_before_retry)
        return client

    def _pause_before_retry(
        self, response: Any, caught_exception: Exception | None, request_dict: dict[str, Any], **_: object
    ) -> float | None:
        """Return the seconds after which botocore sends the request again; None: it does not."""
        if caught_exception is not None and not isinstance(caught_exception, BotoCoreError):
            return None  # not an error of the network
        # A success is asked about too, and translated to an error that nothing retries.
        error = self._translate(caught_exception or _refusal(response[1]))
        if not isinstance(error, StoreUnavailable):
            return None
        retries: AnnouncedRetries = request_dict["context"].setdefault("kubetrain_retries", AnnouncedRetries())
        try:
            pause = retries.pause_after(error)
        except StoreUnavailable:
            return None
        self.retries += 1
        return pause


@functools.cache
def _loader() -> Any:
    """Return the reader of botocore's data, which remembers what it has read: each session would read it again."""
    return Session().get_component("data_loader")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        raise _refused(error) from error
    except S3UploadFailedError as error:
        # boto3 raises it while handling the ClientError with the cause.
        raise _refused(error.__context__) from error


def _refused(error: Any) -> RequestRefused | ClientError:
    if error.operation_name not in OPERATIONS:
        return ClientError(error.response, error.operation_name)
    return _refusal(error.response)


def _refusal(response: Mapping[str, Any]) -> RequestRefused:
    details, metadata = response.get("Error", {}), response.get("ResponseMetadata", {})
    headers = metadata.get("HTTPHeaders", {})
    wait = seconds_to_wait(headers.get("retry-after", ""), headers.get("date", ""))
    status = metadata.get("HTTPStatusCode", 0)
    return RequestRefused(status, str(details.get("Code", "")), details.get("Message", ""), wait)
