"""The checksum of an object that the headers of a response report."""

import base64
import binascii

from kubetrain_components.object_store.checksums import HASHERS, LOOKS_LIKE_MD5
from kubetrain_components.object_store.s3.etags import MODIFIED, PLACEHOLDERS, etag_of
from kubetrain_components.object_store.s3.http_head import Headers


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
