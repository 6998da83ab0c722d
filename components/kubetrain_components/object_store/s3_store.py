"""Objects of an S3 bucket, by boto3."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from kubetrain_components.object_store.store import ObjectChanged, ObjectContent, StoredObject, StoreError
from kubetrain_trainer.durable_files import CHUNK_BYTES
from kubetrain_trainer.errors import InvalidSetting

CONFIG = Config(
    connect_timeout=5,
    read_timeout=60,
    retries={"mode": "standard", "max_attempts": 3},
    max_pool_connections=64,
)
# boto3 picks its CRT client by itself on some machines, and that one ignores endpoint_url.
TRANSFER = TransferConfig(preferred_transfer_client="classic")
DEFAULT_REGION = "us-east-1"


class S3Store:
    def __init__(self, bucket: str, prefix: str, endpoint_url: str = "", anonymous: bool = False) -> None:
        self.uri = f"s3://{bucket}/{prefix}"
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._where = endpoint_url or "AWS"
        try:
            self._client = _client(endpoint_url, anonymous)
        except (BotoCoreError, ValueError) as error:
            raise InvalidSetting(
                f"S3 cannot be used for {self.uri} ({error}): check the endpoint URL, AWS_PROFILE and the AWS settings"
            ) from error

    def list(self) -> Iterator[StoredObject]:
        with self._errors_explained():
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix)
            for page in pages:
                for item in page.get("Contents", []):
                    key = item["Key"].removeprefix(self._prefix)
                    yield StoredObject(key, item["Size"], item["ETag"].strip('"'))

    def read(self, key: str, etag: str | None = None, start: int = 0, end: int | None = None) -> ObjectContent:
        condition = {"IfMatch": f'"{etag}"'} if etag else {}
        is_part = start > 0 or end is not None
        part = {"Range": f"bytes={start}-{'' if end is None else end - 1}"} if is_part else {}
        with self._errors_explained():
            response = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key, **condition, **part)
        # Servers answer a range that they cannot make sense of with the whole object.
        if is_part and "ContentRange" not in response:
            raise StoreError(f"S3 at {self._where} did not heed {part['Range']} of {self.uri} object {key!r}")
        return ObjectContent(self._chunks(response["Body"]), None if is_part else _md5_of(response))

    def write(self, key: str, content: bytes | Path) -> None:
        with self._errors_explained():
            if isinstance(content, bytes):
                self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=content)
            else:
                self._client.upload_file(str(content), self._bucket, self._prefix + key, Config=TRANSFER)

    def find(self, key: str) -> StoredObject | None:
        try:
            with self._errors_explained():
                head = self._client.head_object(Bucket=self._bucket, Key=self._prefix + key)
        except ObjectChanged:
            return None
        return StoredObject(key, head["ContentLength"], head["ETag"].strip('"'))

    def write_if(self, key: str, content: bytes, etag: str | None) -> None:
        condition = {"IfMatch": f'"{etag}"'} if etag else {"IfNoneMatch": "*"}
        with self._errors_explained():
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=content, **condition)

    def _chunks(self, body: Any) -> Iterator[bytes]:
        with self._errors_explained():
            yield from body.iter_chunks(CHUNK_BYTES)

    @contextmanager
    def _errors_explained(self) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            raise self._explained(error) from error
        except S3UploadFailedError as error:
            # boto3 raises it while it handles the ClientError that says more.
            raise self._explained(error.__context__) from error
        except BotoCoreError as error:
            raise StoreError(
                f"cannot reach S3 at {self._where} for {self.uri} ({error}): check the endpoint and the credentials"
            ) from error

    def _explained(self, error: ClientError) -> StoreError:
        details: dict[str, Any] = error.response.get("Error", {})
        code, status = details.get("Code", ""), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if code == "NoSuchBucket":
            return StoreError(f"bucket '{self._bucket}' does not exist at {self._where}: check {self.uri}")
        if code in ("NoSuchKey", "404", "PreconditionFailed", "ConditionalRequestConflict"):
            return ObjectChanged(f"an object under {self.uri} changed or went away meanwhile")
        if status == 403:
            return StoreError(f"access to {self.uri} was denied ({code}): check the credentials and their rights")
        return StoreError(f"S3 at {self._where} refused a request for {self.uri}: {code} {details.get('Message', '')}")


def _client(endpoint_url: str, anonymous: bool) -> Any:
    session = boto3.session.Session()
    return session.client(
        "s3",
        endpoint_url=endpoint_url or None,
        region_name=session.region_name or DEFAULT_REGION,
        config=CONFIG.merge(Config(signature_version=UNSIGNED)) if anonymous else CONFIG,
    )


def _md5_of(response: dict[str, Any]) -> str | None:
    """The ETag where it is the content's MD5: not of objects uploaded in parts, nor of those encrypted by a KMS key."""
    etag: str = response["ETag"].strip('"')
    is_md5 = re.fullmatch("[0-9a-f]{32}", etag) and not response.get("ServerSideEncryption", "").startswith("aws:kms")
    return etag if is_md5 else None
