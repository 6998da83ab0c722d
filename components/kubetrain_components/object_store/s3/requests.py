"""Signed requests to one bucket, from many threads at once.

botocore finds the endpoint, credentials and CA certificates, so that they are configured as for every AWS tool. The
requests are our own, because botocore's overhead per request is longer than a small object takes to arrive.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Self
from urllib.parse import quote, urlencode, urlsplit

from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import NoCredentialsError
from botocore.session import Session

from kubetrain_components.object_store.s3.http_connection import HttpConnection, HttpResponse
from kubetrain_components.object_store.s3.origin import Origin
from kubetrain_components.object_store.s3.signature import Signer
from kubetrain_components.object_store.store import Access

DEFAULT_REGION = "us-east-1"
EMPTY: Mapping[str, str] = MappingProxyType({})
ERROR_PART = re.compile(rb"<(Code|Message)>([^<]*)<")


class RequestRefused(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code} {message}".strip())
        self.status = status
        self.code = code
        self.message = message


@dataclass(frozen=True)
class Location:
    """The server, path and region of a bucket."""

    origin: Origin
    path: str
    """Percent-encoded path before the keys: empty, or the name of the bucket."""
    region: str

    @classmethod
    def of_bucket(cls, session: Session, bucket: str, endpoint_url: str, region: str) -> Self:
        client = session.create_client(
            "s3",
            endpoint_url=endpoint_url or None,
            region_name=region,
            config=Config(signature_version=UNSIGNED),
        )
        url = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "key"})
        verify = session.get_config_variable("ca_bundle")
        path = urlsplit(url).path.removesuffix("/key")
        return cls(Origin.of_url(url, verify), path, client.meta.region_name)


class S3Requests:
    def __init__(self, bucket: str, endpoint_url: str, access: Access = Access.CREDENTIALS) -> None:
        self._session = Session()
        self._bucket = bucket
        self._endpoint_url = endpoint_url
        self._default_headers = {"x-amz-request-payer": "requester"} if access == Access.REQUESTER_PAYS else {}
        self._idle: list[HttpConnection] = []
        self._locate(self._session.get_config_variable("region") or DEFAULT_REGION)
        self._credentials = None if access == Access.ANONYMOUS else self._session.get_credentials()
        if self._credentials is None and access != Access.ANONYMOUS:
            raise NoCredentialsError

    def send(
        self, method: str, key: str = "", *, query: Mapping[str, str] = EMPTY, headers: Mapping[str, str] = EMPTY
    ) -> HttpResponse:
        """Return the response; body_of() reads its body.

        Raises:
            RequestRefused: if the response is an error.
            ConnectionFailed: if no response arrives.
        """
        while True:
            location = self._location
            response = self._send_to(location, method, key, query, headers)
            if response.status in (200, 206):
                return response
            refused, region = self._read_error(response), response.headers.get("x-amz-bucket-region")
            if not region or region == location.region or refused.status not in (301, 307, 400):
                raise refused
            self._locate(region)

    def body_of(self, response: HttpResponse) -> Iterator[memoryview]:
        """Yield the chunks of the body, each in the same buffer; then keep the connection for the next request."""
        connection = response.connection
        is_read = False
        try:
            while count := response.read_into(connection.buffer):
                yield connection.buffer[:count]
            is_read = True
        finally:
            if is_read:
                self._idle.append(connection)
            else:
                connection.close()

    def _send_to(
        self, location: Location, method: str, key: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> HttpResponse:
        path = f"{location.path}/{quote(key, safe='/')}"
        encoded = urlencode(sorted(query.items()), quote_via=quote, safe="")
        sent = {"host": location.origin.authority, **self._default_headers, **headers}
        if self._credentials is not None:
            frozen = self._credentials.get_frozen_credentials()
            keys = (frozen.access_key, frozen.secret_key, frozen.token)
            sent = self._signer.signed(method, path, encoded, sent, keys, datetime.now(UTC))
        target = f"{path}?{encoded}" if encoded else path
        return self._connection_to(location.origin).request(method, target, sent)

    def _connection_to(self, origin: Origin) -> HttpConnection:
        try:
            kept = self._idle.pop()
        except IndexError:
            return HttpConnection(origin)
        return kept if kept.origin is origin else HttpConnection(origin)

    def _read_error(self, response: HttpResponse) -> RequestRefused:
        body = b"".join(map(bytes, self.body_of(response)))
        parts = {name.decode(): value.decode(errors="replace") for name, value in ERROR_PART.findall(body)}
        return RequestRefused(response.status, parts.get("Code", ""), parts.get("Message", ""))

    def _locate(self, region: str) -> None:
        self._location = Location.of_bucket(self._session, self._bucket, self._endpoint_url, region)
        self._signer = Signer(self._location.region)
