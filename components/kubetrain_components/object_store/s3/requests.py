"""Signed requests to one bucket, from many threads at once.

botocore finds the endpoint, credentials and CA certificates, so that they are configured as for every AWS tool. The
requests are our own, because botocore's overhead per request is longer than a small object takes to arrive.
"""

import hashlib
import hmac
import os
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from threading import Lock
from types import MappingProxyType
from typing import Self
from urllib.parse import quote, urlencode, urlsplit

from botocore import UNSIGNED
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import CredentialRetrievalError, NoCredentialsError
from botocore.session import Session

from kubetrain_components.object_store.s3.http_connection import HttpConnection, HttpResponse
from kubetrain_components.object_store.s3.origin import Origin
from kubetrain_components.object_store.s3.refusals import RequestRefused, refusal_of
from kubetrain_components.object_store.store import Access

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
ALGORITHM = "AWS4-HMAC-SHA256"

DEFAULT_REGION = "us-east-1"
REGION_VARIABLES = ("AWS_DEFAULT_REGION", "AWS_REGION")
"""botocore's own, and that of every other AWS tool."""
REDIRECTED = (301, 302, 307, 400)
MAX_REDIRECTS = 3
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}
EMPTY: Mapping[str, str] = MappingProxyType({})


def frozen_keys(credentials: Credentials) -> tuple[str, str, str | None]:
    """Return the current access key, secret key and session token, after renewing them if it is time.

    Raises:
        BotoCoreError, ClientError: if they cannot be renewed.
    """
    try:
        frozen = credentials.get_frozen_credentials()
    except RuntimeError as error:  # the renewed ones have expired too
        raise CredentialRetrievalError(provider="refresh", error_msg=str(error)) from error
    return frozen.access_key, frozen.secret_key, frozen.token


class Signer:
    """Signs requests without a body, as botocore does but many times faster: it caches the key of the day."""

    def __init__(self, region: str) -> None:
        self.region = region
        self._cached = ("", "", b"")  # secret, day and key: one tuple, because threads share it

    def signed(
        self,
        method: str,
        path: str,
        query: str,
        headers: Mapping[str, str],
        credentials: tuple[str, str, str | None],
        moment: datetime,
    ) -> dict[str, str]:
        """Return the headers together with those of the signature.

        Args:
            path: The percent-encoded path.
            query: The percent-encoded parameters, sorted by name.
            headers: The headers to sign, including the host, with lowercase names.
            credentials: The access key, secret key and session token.
            moment: The time of the request.
        """
        access, secret, token = credentials
        time, day = f"{moment:%Y%m%dT%H%M%SZ}", f"{moment:%Y%m%d}"
        signed = {**headers, "x-amz-content-sha256": EMPTY_SHA256, "x-amz-date": time}
        if token:
            signed["x-amz-security-token"] = token
        names = sorted(signed)
        lines = "".join(f"{name}:{signed[name]}\n" for name in names)
        request = f"{method}\n{path}\n{query}\n{lines}\n{';'.join(names)}\n{EMPTY_SHA256}"
        scope = f"{day}/{self.region}/s3/aws4_request"
        to_sign = f"{ALGORITHM}\n{time}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        signature = hmac.digest(self._signing_key(secret, day), to_sign.encode(), "sha256").hex()
        signed["authorization"] = (
            f"{ALGORITHM} Credential={access}/{scope}, SignedHeaders={';'.join(names)}, Signature={signature}"
        )
        return signed

    def _signing_key(self, secret: str, day: str) -> bytes:
        cached_secret, cached_day, key = self._cached
        if (cached_secret, cached_day) != (secret, day):
            key = f"AWS4{secret}".encode()
            for part in (day, self.region, "s3", "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._cached = (secret, day, key)
        return key


@dataclass(frozen=True)
class Location:
    """The server, path and region of a bucket."""

    origin: Origin
    path: str
    """Percent-encoded path before the keys: empty, or the name of the bucket."""
    signer: Signer
    ca_bundle: str | None = None

    def at(self, url: str, key: str) -> Self | None:
        """Return the location of a bucket whose object has this URL; None if it is none, or lacks the encryption."""
        parts, name = urlsplit(url), f"/{quote(key, safe='/')}"
        is_usable = parts.scheme in (self.origin.scheme, "https") and parts.hostname and parts.path.endswith(name)
        if not is_usable:
            return None
        return replace(self, origin=Origin.of_url(url, self.ca_bundle), path=parts.path.removesuffix(name))

    @classmethod
    def of_bucket(cls, session: Session, bucket: str, endpoint_url: str, region: str) -> Self:
        region = region_of_arn(bucket) or region
        client = session.create_client(
            "s3", endpoint_url=endpoint_url or None, region_name=region, config=Config(signature_version=UNSIGNED)
        )
        url = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "key"})
        verify = session.get_config_variable("ca_bundle")
        path = urlsplit(url).path.removesuffix("/key")
        return cls(Origin.of_url(url, verify), path, Signer(client.meta.region_name), verify)


class S3Requests:
    def __init__(self, bucket: str, endpoint_url: str, access: Access = Access.CREDENTIALS) -> None:
        self._session = Session()
        self._bucket = bucket
        self._endpoint_url = endpoint_url
        self._default_headers = {"x-amz-request-payer": "requester"} if access == Access.REQUESTER_PAYS else {}
        self._idle: list[HttpConnection] = []
        self._renewing = Lock()
        self._locate(region_of(self._session))
        self._credentials = None if access == Access.ANONYMOUS else self._session.get_credentials()
        if self._credentials is None and access != Access.ANONYMOUS:
            raise NoCredentialsError

    @property
    def place(self) -> tuple[str, str]:
        """The server and the path of the bucket."""
        return self._location.origin.authority, self._location.path

    def send(
        self, method: str, key: str = "", *, query: Mapping[str, str] = EMPTY, headers: Mapping[str, str] = EMPTY
    ) -> HttpResponse:
        """Return the response; body_of() reads its body.

        Raises:
            RequestRefused: if the response is an error.
            ConnectionFailed: if no response arrives.
        """
        location = self._location
        for _ in range(MAX_REDIRECTS):
            credentials = self._credentials
            response = self._send_to(location, method, key, query, headers)
            if response.status in (200, 206):
                return response
            refused = self._read_error(response)
            if refused.code in EXPIRED and credentials is not None:
                self._renew(credentials)
            elif (following := self._location_after(refused, location, key)) is not None:
                location = following
            else:
                break
        raise refused

    def body_of(self, response: HttpResponse) -> Generator[memoryview, None, None]:
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
            keys = frozen_keys(self._credentials)
            sent = location.signer.signed(method, path, encoded, sent, keys, datetime.now(UTC))
        target = f"{path}?{encoded}" if encoded else path
        return self._connection_to(location.origin).request(method, target, sent)

    def _connection_to(self, origin: Origin) -> HttpConnection:
        try:
            kept = self._idle.pop()
        except IndexError:
            return HttpConnection(origin)
        return kept if kept.origin is origin else HttpConnection(origin)

    def _renew(self, expired: Credentials) -> None:
        """Obtain credentials again, although botocore takes those for fresh: their lifetime was cut short."""
        with self._renewing:
            if self._credentials is expired:
                self._credentials = Session().get_credentials()

    def _location_after(self, refused: RequestRefused, location: Location, key: str) -> Location | None:
        """Return where else to send a request, if the server says so."""
        if refused.status not in REDIRECTED:
            return None
        region = self._region_after(refused)
        if region and region != location.signer.region:
            self._locate(region)
            return self._location
        return None if region else location.at(refused.location, key)

    def _region_after(self, refused: RequestRefused) -> str:
        """Return the bucket's region if the server names one."""
        if refused.region or refused.status == 400 or refused.location:
            return refused.region
        return self._read_error(self._send_to(self._location, "HEAD", "", EMPTY, EMPTY)).region

    def _read_error(self, response: HttpResponse) -> RequestRefused:
        """Read the error in a response, of which a broken server may send any number of bytes."""
        with closing(self.body_of(response)) as chunks:
            body = b"".join(map(bytes, islice(chunks, 2)))  # the end of a short one keeps its connection
        return refusal_of(response.status, response.headers, body)

    def _locate(self, region: str) -> None:
        self._location = Location.of_bucket(self._session, self._bucket, self._endpoint_url, region)


def region_of(session: Session) -> str:
    """Return the configured region; for botocore alone, the variable of other AWS tools would not count."""
    from_environment = (os.environ.get(name, "") for name in REGION_VARIABLES)
    return next(filter(None, from_environment), "") or session.get_config_variable("region") or DEFAULT_REGION


def region_of_arn(bucket: str) -> str:
    return bucket.split(":")[3] if bucket.startswith("arn:") else ""
