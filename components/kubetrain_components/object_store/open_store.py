"""Open the store that a URI names."""

import re
from pathlib import Path
from urllib.parse import unquote

from kubetrain_components.object_store.store import Access, ObjectStore
from kubetrain_components.urls import has_host_and_port, is_placeholder
from kubetrain_trainer.errors import InvalidSetting

# The names that boto3 accepts: old buckets may have capital letters and underscores.
BUCKET = re.compile(r"[a-zA-Z0-9._-]{1,255}")
ACCESS_POINT = re.compile(r"(arn:[^/:]+:s3:[^/:]+:\d+:accesspoint)[:/]([a-z0-9-]+)")
OTHER_PROTOCOLS = {
    "an access point of S3 Object Lambda": re.compile("arn:[^/:]+:s3-object-lambda:"),
    "a bucket of S3 on Outposts": re.compile("arn:[^/:]+:s3-outposts:|[^/]*--op-s3(/|$)"),
    "a multi-region access point": re.compile("arn:[^/:]+:s3::"),
    "a directory bucket of S3 Express": re.compile("[^/]*--xa?-s3(/|$)"),
}
"""Buckets whose requests are signed in ways of their own."""


def check_uri(setting: str, uri: str) -> None:
    """Check that a setting's URI can name a store, without asking the store.

    Raises:
        InvalidSetting: if it cannot.
    """
    scheme, separator, rest = uri.partition("://")
    shown = without_secrets(uri)
    if not uri:
        raise InvalidSetting(f"{setting} is empty: write s3://BUCKET/PREFIX")
    if separator and scheme not in ("s3", "file"):
        raise InvalidSetting(f"{setting} '{shown}' is neither s3://BUCKET/PREFIX nor the path of a directory")
    if scheme == "s3" and separator:
        _check_bucket(f"{setting} '{shown}'", rest)


def _check_bucket(setting: str, rest: str) -> None:
    for kind, names in OTHER_PROTOCOLS.items():
        if names.match(rest):
            raise InvalidSetting(
                f"{setting} names {kind}, which cannot be used: name a general purpose bucket, or copy the objects "
                "to one"
            )
    bucket, prefix = split_bucket(rest)
    if not bucket:
        raise InvalidSetting(f"{setting} has no bucket: write s3://BUCKET/PREFIX")
    if is_placeholder(bucket):
        raise InvalidSetting(f"{setting} is a placeholder: fill in the name of your bucket and prefix")
    if "@" in rest.partition("/")[0] or (":" in bucket and not ACCESS_POINT.fullmatch(bucket)):
        raise InvalidSetting(
            f"{setting} is not valid: write s3://BUCKET/PREFIX without keys, and set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY"
        )
    if not BUCKET.fullmatch(bucket) and not ACCESS_POINT.fullmatch(bucket):
        raise InvalidSetting(
            f"{setting} is not valid: the bucket '{bucket}' may have only letters, digits, dots, hyphens and "
            "underscores"
        )
    if prefix.startswith("/") or prefix.endswith("//"):
        raise InvalidSetting(f"{setting} has an empty name between two slashes: write one slash there")


def is_inside(inner: str, outer: str) -> bool:
    """Return True if objects under the inner URI are also under the outer one."""
    if names_directory(inner) != names_directory(outer):
        return False
    return _parts_of(inner)[: len(parts := _parts_of(outer))] == parts


def _parts_of(uri: str) -> tuple[str, ...]:
    if names_directory(uri):
        return local_path(uri).resolve().parts
    return tuple(part for part in uri.removeprefix("s3://").split("/") if part)


def check_endpoint(setting: str, url: str) -> None:
    """
    Raises:
        InvalidSetting: if it is no URL of an S3 server, or has a user and password, which S3 does not use.
    """
    if "@" in url:
        raise InvalidSetting(
            f"{setting} '{without_secrets(url)}' has a user and password, which S3 does not use: set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if url and not (url.startswith(("http://", "https://")) and has_host_and_port(url)):
        raise InvalidSetting(f"{setting} '{url}' is not a URL: write https://HOST[:PORT]")


def without_secrets(uri: str) -> str:
    """Return a URI without what may be a password, or the signature of a presigned URL."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return uri
    account = re.compile(r"[^@]*:[^@]*@" if scheme == "s3" else r".*@")
    rest = account.sub("…@", rest, count=1)
    return f"{scheme}://{rest if scheme in ('s3', 'file') else rest.partition('?')[0]}"


def split_bucket(rest: str) -> tuple[str, str]:
    """Return the bucket, or the ARN of an access point, and the prefix of what follows s3://."""
    point = ACCESS_POINT.match(rest)
    if point is None:
        bucket, _, prefix = rest.partition("/")
        return bucket, prefix
    return f"{point[1]}:{point[2]}", rest[point.end() :].removeprefix("/")


def open_store(
    uri: str, endpoint_url: str = "", access: Access = Access.CREDENTIALS, *, was_reached: bool = False
) -> ObjectStore:
    """
    Args:
        was_reached: True if an earlier step has reached the server, so that it is worth waiting for.
    """
    check_uri("the URI", uri)
    check_endpoint("the endpoint", endpoint_url)
    if not names_directory(uri):
        # The import takes a third of a second, and directories do not need it.
        from kubetrain_components.object_store.s3.store import S3Store

        return S3Store(*split_bucket(uri.removeprefix("s3://")), endpoint_url, access, was_reached=was_reached)

    from kubetrain_components.object_store.directory_store import DirectoryStore

    return DirectoryStore(local_path(uri))


def names_directory(uri: str) -> bool:
    return not uri.startswith("s3://")


def local_path(uri: str, mirror: Path = Path()) -> Path:
    """Return the directory that a URI names; for S3, the one with its objects in a folder that mirrors buckets."""
    if not names_directory(uri):
        return mirror / uri.removeprefix("s3://")
    return Path(unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri)
