"""What an error response of S3 means, and the sentence for users."""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime

from kubetrain_components.object_store.retries import seconds_to_wait
from kubetrain_components.object_store.s3.http_head import Headers
from kubetrain_components.object_store.store import (
    AccessRefused,
    ObjectChanged,
    PermissionDenied,
    StoreError,
    StoreUnavailable,
)

PART = re.compile(rb"<(Code|Message|Region|ServerTime)>([^<]*)<")
CHANGED = {"NoSuchKey", "404", "PreconditionFailed", "412", "ConditionalRequestConflict"}
OVERLOADED = re.compile("SlowDown|TooManyRequests|Throttl|RequestLimitExceeded|BandwidthLimitExceeded|429|503")
UNAVAILABLE = {"InternalError", "RequestTimeout", "408"}
PERMANENT_STATUS = {501, 505}
INVALID_CREDENTIALS = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
DENIED = {"AccessDenied", "403", "401", "AllAccessDisabled"}


@dataclass(eq=False)
class RequestRefused(Exception):
    """The server answered with an error."""

    status: int
    code: str
    message: str
    retry_after: float = 0.0
    region: str = field(default="", kw_only=True)
    server_time: str = field(default="", kw_only=True)
    location: str = field(default="", kw_only=True)

    def __str__(self) -> str:
        return f"{self.status} {self.code} {self.message}".strip()


def refusal_of(status: int, headers: Headers, body: bytes) -> RequestRefused:
    parts = {name.decode(): value.decode(errors="replace") for name, value in PART.findall(body)}
    return RequestRefused(
        status,
        parts.get("Code", ""),
        parts.get("Message", ""),
        seconds_to_wait(headers.get("retry-after"), headers.get("date")),
        region=headers.get("x-amz-bucket-region") or parts.get("Region", ""),
        server_time=parts.get("ServerTime", ""),
        location=headers.get("location"),
    )


@dataclass
class Place:
    """The names in messages of the place that requests go to."""

    bucket: str
    uri: str
    server: str
    archived: int = 0
    """Number of objects that the last listing calls archived."""


def translated(refused: RequestRefused, what: str, place: Place) -> StoreError:
    code = refused.code or str(refused.status)
    if code in CHANGED:
        return ObjectChanged(f"{what} of {place.uri} was changed or deleted")
    if code in INVALID_CREDENTIALS:
        return AccessRefused(f"S3 at {place.server} rejected the credentials for {place.uri} ({code}): renew them")
    if code == "RequestTimeTooSkewed":
        times = f"here it is {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}, there {refused.server_time or 'another time'}"
        return AccessRefused(f"S3 at {place.server} rejected the time of a request ({code}; {times}): set the clock")
    if _is_temporary(refused, code):
        is_overloaded = refused.status in (429, 503) or bool(OVERLOADED.match(code))
        message = _unknown(refused, code, what, place)
        return StoreUnavailable(message, is_overloaded=is_overloaded, retry_after=refused.retry_after)
    kind = PermissionDenied if code in DENIED else StoreError
    return kind(_sentence(refused, code, what, place))


def _is_temporary(refused: RequestRefused, code: str) -> bool:
    is_fault = refused.status >= 500 and refused.status not in PERMANENT_STATUS
    return is_fault or refused.status in (408, 429) or code in UNAVAILABLE or bool(OVERLOADED.match(code))


def _sentence(refused: RequestRefused, code: str, what: str, place: Place) -> str:
    if code == "NoSuchBucket":
        return f"bucket '{place.bucket}' does not exist at {place.server}: check {place.uri}"
    if code == "InvalidObjectState":
        others = f", one of {place.archived} in GLACIER or DEEP_ARCHIVE," if place.archived > 1 else ""
        return (
            f"{what} of {place.uri}{others} is archived ({code}): restore what is archived (aws s3api restore-object), "
            "or copy it to another storage class"
        )
    if code in DENIED:
        return f"access to {what} of {place.uri} was denied ({code}): check the permissions of the credentials"
    return _unknown(refused, code, what, place)


def _unknown(refused: RequestRefused, code: str, what: str, place: Place) -> str:
    return f"S3 at {place.server} rejected a request for {what} of {place.uri}: {code} {refused.message}".rstrip()
