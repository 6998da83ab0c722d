"""Open the store that a URI names."""

import re
from pathlib import Path
from urllib.parse import unquote

from kubetrain_components.object_store.store import Access, ObjectStore
from kubetrain_trainer.errors import InvalidSetting

# The names that boto3 accepts: old buckets may have capital letters and underscores.
BUCKET = re.compile(r"[a-zA-Z0-9._-]{1,255}|arn:[^/]+:accesspoint:[^/]+")


def check_uri(setting: str, uri: str) -> None:
    """Check that a setting's URI can name a store, without asking the store.

    Raises:
        InvalidSetting: if it cannot.
    """
    scheme, separator, rest = uri.partition("://")
    if not uri:
        raise InvalidSetting(f"{setting} is empty: write s3://BUCKET/PREFIX")
    if separator and scheme not in ("s3", "file"):
        raise InvalidSetting(f"{setting} '{uri}' is neither s3://BUCKET/PREFIX nor the path of a directory")
    bucket = rest.partition("/")[0]
    if scheme == "s3" and not bucket:
        raise InvalidSetting(f"{setting} '{uri}' has no bucket: write s3://BUCKET/PREFIX")
    if scheme == "s3" and not BUCKET.fullmatch(bucket):
        raise InvalidSetting(
            f"{setting} '{uri}' is not valid: the bucket '{bucket}' may have only letters, digits, dots, hyphens and "
            "underscores"
        )


def is_inside(inner: str, outer: str) -> bool:
    """Return True if objects under the inner URI are also under the outer one."""
    if names_directory(inner) != names_directory(outer):
        return False
    return _parts_of(inner)[: len(parts := _parts_of(outer))] == parts


def _parts_of(uri: str) -> tuple[str, ...]:
    if names_directory(uri):
        return local_path(uri).resolve().parts
    return tuple(part for part in uri.removeprefix("s3://").split("/") if part)


def check_access(setting: str, access: str) -> None:
    if access not in list(Access):
        raise InvalidSetting(f"{setting} is '{access}': use one of {', '.join(Access)}")


def open_store(uri: str, endpoint_url: str = "", access: Access = Access.CREDENTIALS) -> ObjectStore:
    check_uri("the URI", uri)
    if not names_directory(uri):
        # The import takes a third of a second, and directories do not need it.
        from kubetrain_components.object_store.s3.store import S3Store

        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        return S3Store(bucket, prefix, endpoint_url, access)

    from kubetrain_components.object_store.directory_store import DirectoryStore

    return DirectoryStore(local_path(uri))


def names_directory(uri: str) -> bool:
    return not uri.startswith("s3://")


def local_path(uri: str, mirror: Path = Path()) -> Path:
    """Return the directory that a URI names; for S3, the one with its objects in a folder that mirrors buckets."""
    if not names_directory(uri):
        return mirror / uri.removeprefix("s3://")
    return Path(unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri)
