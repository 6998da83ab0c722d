"""The store that a URI names."""

from pathlib import Path
from urllib.parse import unquote

from kubetrain_components.object_store.store import ObjectStore
from kubetrain_trainer.errors import InvalidSetting


def check_uri(setting: str, uri: str) -> None:
    """
    Raises:
        InvalidSetting: for a URI that names no store.
    """
    scheme, separator, rest = uri.partition("://")
    if not uri:
        raise InvalidSetting(f"{setting} is empty: write s3://BUCKET/PREFIX")
    if separator and scheme not in ("s3", "file"):
        raise InvalidSetting(f"{setting} '{uri}' is neither s3://BUCKET/PREFIX nor the path of a directory")
    if scheme == "s3" and not rest.partition("/")[0]:
        raise InvalidSetting(f"{setting} '{uri}' has no bucket: write s3://BUCKET/PREFIX")


def open_store(uri: str, endpoint_url: str = "", anonymous: bool = False) -> ObjectStore:
    check_uri("the URI", uri)
    if uri.startswith("s3://"):
        # A third of a second to import, which a directory can do without.
        from kubetrain_components.object_store.s3_store import S3Store

        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        return S3Store(bucket, prefix, endpoint_url, anonymous)

    from kubetrain_components.object_store.directory_store import DirectoryStore

    return DirectoryStore(Path(unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri))
