"""Writes to a bucket, which are rare enough to use boto3."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

from kubetrain_components.object_store.s3.requests import DEFAULT_REGION, RequestRefused
from kubetrain_components.object_store.store import Access

CONFIG = Config(connect_timeout=5, read_timeout=60, retries={"mode": "standard", "max_attempts": 3})
# On some machines boto3 would choose its CRT client, which ignores endpoint_url.
TRANSFER = TransferConfig(preferred_transfer_client="classic")


class S3Writer:
    """
    Raises, in every method:
        RequestRefused: if the response is an error.
        BotoCoreError: if no response arrives.
    """

    def __init__(self, bucket: str, endpoint_url: str, access: Access) -> None:
        session = boto3.session.Session()
        self._bucket = bucket
        self._client: Any = session.client(
            "s3",
            endpoint_url=endpoint_url or None,
            region_name=session.region_name or DEFAULT_REGION,
            config=CONFIG.merge(Config(signature_version=UNSIGNED)) if access == Access.ANONYMOUS else CONFIG,
        )

    def write(self, key: str, content: bytes | Path) -> None:
        with _translated():
            if isinstance(content, bytes):
                self._client.put_object(Bucket=self._bucket, Key=key, Body=content)
            else:
                self._client.upload_file(str(content), self._bucket, key, Config=TRANSFER)

    def write_if(self, key: str, content: bytes, etag: str | None) -> None:
        condition = {"IfMatch": f'"{etag}"'} if etag else {"IfNoneMatch": "*"}
        with _translated():
            self._client.put_object(Bucket=self._bucket, Key=key, Body=content, **condition)

    def delete(self, key: str) -> None:
        with _translated():
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def find(self, key: str) -> tuple[int, str]:
        """Return the size and the ETag."""
        with _translated():
            head = self._client.head_object(Bucket=self._bucket, Key=key)
        return head["ContentLength"], head["ETag"].strip('"')


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        raise _refused(error) from error
    except S3UploadFailedError as error:
        # boto3 raises it while handling the ClientError with the cause.
        raise _refused(error.__context__) from error


def _refused(error: Any) -> RequestRefused:
    details = error.response.get("Error", {})
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return RequestRefused(status, str(details.get("Code", "")), details.get("Message", ""))
