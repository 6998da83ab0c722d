"""Open the store that a URI names."""

import re
from pathlib import Path
from urllib.parse import unquote

from kubetrain_components.object_store.sources import SEVERAL, sources_of, text_of
from kubetrain_components.object_store.store import Access, ObjectStore
from kubetrain_components.urls import has_host_and_port, is_placeholder
from kubetrain_trainer.errors import InvalidSetting, KubetrainError

# The names that boto3 accepts: old buckets may have capital letters and underscores.
BUCKET = re.compile(r"[a-zA-Z0-9._-]{1,255}")
ACCESS_POINT = re.compile(r"(arn:[^/:]+:s3:[^/:]+:\d+:accesspoint)[:/]([a-z0-9-]+)")
FORMS = {
    "s3": "s3://BUCKET/PREFIX",
    "gs": "gs://BUCKET/PREFIX",
    "az": "az://ACCOUNT/CONTAINER/PREFIX",
    "hf": "hf://datasets/OWNER/NAME[@REVISION][/FOLDER]",
    "pvc": "pvc://CLAIM/PATH",
}
"""The forms of URIs, by scheme."""
PATTERNS = {
    "gs": re.compile(r"(?P<bucket>[a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(/(?P<prefix>[^/].*)?)?"),
    "az": re.compile(r"(?P<account>[a-z0-9]{3,24})/(?P<container>[$]?[a-z0-9-]{3,63})(/(?P<prefix>[^/].*)?)?"),
    "hf": re.compile(
        r"datasets/(?P<dataset>[\w.-]+/[\w.-]+)(@(?P<revision>refs/(convert|pr)/[^/]+|[^/]+))?(/(?P<folder>[^/].*)?)?"
    ),
}
"""What follows the schemes; S3 has checks of its own."""
WRITABLE = ("s3", "gs", "az")
EXTRAS = {"gs": "components,gcs", "az": "components,azure"}
"""The extras of pyproject.toml with the libraries of a store."""
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
    named = f"{setting} '{without_secrets(uri)}'"
    if not uri:
        raise InvalidSetting(f"{setting} is empty: write {FORMS['s3']}")
    if separator and scheme not in (*FORMS, "file"):
        raise InvalidSetting(f"{named} is neither {', '.join(FORMS.values())} nor the path of a directory")
    if scheme == "pvc" and separator:
        raise InvalidSetting(
            f"{named} names a PVC of a cluster, which only data.uri of a run there can, alone: use a folder or a bucket"
        )
    if scheme == "s3" and separator:
        _check_bucket(named, rest)
    elif separator and scheme in PATTERNS and (not PATTERNS[scheme].fullmatch(rest) or rest.endswith("//")):
        raise InvalidSetting(f"{named} is not valid: write {FORMS[scheme]}")


def check_sources(setting: str, uri: str) -> None:
    """Check the URI of a dataset, or each of several.

    Raises:
        InvalidSetting: if it cannot name a store.
    """
    for folder, each in sources_of(uri, setting).items():
        check_uri(f"{setting}.{folder}" if folder else setting, each)


def check_writable(setting: str, uri: str) -> None:
    """Check that a setting's URI can name a store to write to, without asking the store.

    Raises:
        InvalidSetting: if it cannot.
    """
    check_uri(setting, uri)
    if not names_directory(uri) and uri.partition("://")[0] not in WRITABLE:
        forms = ", ".join(FORMS[scheme] for scheme in WRITABLE)
        raise InvalidSetting(f"{setting} '{uri}' names a store that can only be read: write {forms}")


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
    """Return True if objects under the inner URI are also under the outer one, which may be several."""
    return any(_is_inside(inner, each) for each in sources_of(outer).values())


def _is_inside(inner: str, outer: str) -> bool:
    if names_directory(inner) != names_directory(outer):
        return False
    return _parts_of(inner)[: len(parts := _parts_of(outer))] == parts


def _parts_of(uri: str) -> tuple[str, ...]:
    if names_directory(uri):
        return local_path(uri).resolve().parts
    return tuple(part for part in uri.split("/") if part)


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
    if uri.startswith(SEVERAL):
        return text_of({folder: without_secrets(each) for folder, each in sources_of(uri).items()})
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return uri
    account = re.compile(r"[^@]*:[^@]*@" if scheme in FORMS else r".*@")
    rest = account.sub("…@", rest, count=1)
    return f"{scheme}://{rest if scheme in (*FORMS, 'file') else rest.partition('?')[0]}"


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
    check_sources("the URI", uri)
    check_endpoint("the endpoint", endpoint_url)
    if uri.startswith(SEVERAL):
        from kubetrain_components.object_store.joined_store import JoinedStore

        sources = sources_of(uri).items()
        return JoinedStore(
            {name: open_store(each, endpoint_url, access, was_reached=was_reached) for name, each in sources}
        )
    scheme, _, rest = uri.partition("://")
    try:
        return _open(scheme, rest, uri, endpoint_url, access, was_reached=was_reached)
    except ModuleNotFoundError as error:
        raise KubetrainError(
            f"the package '{error.name}' is not installed, which {scheme}:// needs: install it with `pip install -e "
            f"'.[{EXTRAS.get(scheme, 'components')}]'` in kubetrain's clone"
        ) from error


def _open(scheme: str, rest: str, uri: str, endpoint_url: str, access: Access, *, was_reached: bool) -> ObjectStore:
    # Each import takes up to a third of a second, and the other stores do not need it.
    if names_directory(uri):
        from kubetrain_components.object_store.directory_store import DirectoryStore

        return DirectoryStore(local_path(uri))
    if scheme == "s3":
        from kubetrain_components.object_store.s3.store import S3Store

        return S3Store(*split_bucket(rest), endpoint_url, access, was_reached=was_reached)
    found = PATTERNS[scheme].fullmatch(rest)
    named = {name: text or "" for name, text in found.groupdict().items()} if found else {}
    if scheme == "hf":
        from kubetrain_components.object_store.hugging_face.store import HuggingFaceStore

        return HuggingFaceStore(**named, access=access, was_reached=was_reached)
    if scheme == "gs":
        from kubetrain_components.object_store.gcs.store import GcsStore

        return GcsStore(**named, access=access, was_reached=was_reached)
    from kubetrain_components.object_store.azure.store import AzureStore

    return AzureStore(**named, access=access, was_reached=was_reached)


def names_directory(uri: str) -> bool:
    scheme, separator, _ = uri.partition("://")
    return not separator or scheme not in FORMS


def local_path(uri: str, mirror: Path = Path()) -> Path:
    """Return the directory that a URI names; for S3, the one with its objects in a folder that mirrors buckets."""
    if not names_directory(uri):
        return mirror / uri.removeprefix("s3://")
    return Path(unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri)
