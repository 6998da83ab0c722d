"""The store that a URI names."""

import re
from pathlib import Path
from urllib.parse import unquote

from kubetrain_components.object_store.store import Access, ObjectStore
from kubetrain_trainer.errors import InvalidSetting

# What boto3 accepts, which is more than a new bucket may be called: old ones have capitals and underscores.
BUCKET = re.compile(r"[a-zA-Z0-9._-]{1,255}|arn:[^/]+:accesspoint:[^/]+")


def check_uri(setting: str, uri: str) -> None:
    """Whether a setting's URI can name a store, which is not asked.

    Raises:
        InvalidSetting: for a URI that names no store.
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
            f"{setting} '{uri}' names no bucket: '{bucket}' must be letters, digits, dots, hyphens or underscores"
        )


def check_access(setting: str, access: str) -> None:
    """
    Raises:
        InvalidSetting: where a setting's value is no way to ask a store.
    """
    if access not in list(Access):
        raise InvalidSetting(f"{setting} is '{access}': write one of {', '.join(Access)}")


def open_store(uri: str, endpoint_url: str = "", access: Access = Access.CREDENTIALS) -> ObjectStore:
    check_uri("the URI", uri)
    if uri.startswith("s3://"):
        # A third of a second to import, which a directory can do without.
        from kubetrain_components.object_store.s3.store import S3Store

        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        return S3Store(bucket, prefix, endpoint_url, access)

    from kubetrain_components.object_store.directory_store import DirectoryStore

    return DirectoryStore(path_of(uri))


def path_of(uri: str) -> Path:
    """The directory that a file URI or a plain path names."""
    return Path(unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri)
