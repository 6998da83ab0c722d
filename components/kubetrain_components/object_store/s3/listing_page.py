"""A page of ListObjectsV2, read with regular expressions, because an XML parser is slower."""

import re
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes
from xml.sax.saxutils import unescape

from kubetrain_components.object_store.s3.etags import find_shared, modified
from kubetrain_components.object_store.store import StoredObject, StoreError, StoreUnavailable

# The elements of an object, in the order in which S3 writes them.
ETAG = r'<ETag>(?:W/)?(?:&quot;|&#34;|")?([^<&"]*(?:&(?!quot;|#34;)[^<&"]*)*)'
CHECKSUMS = r"(?:<Checksum\w+>[^<]*</Checksum\w+>\s*)*"
ROW = re.compile(
    rf"<Key>([^<]*)</Key>\s*<LastModified>[^<]*</LastModified>\s*{ETAG}[^<]*</ETag>\s*{CHECKSUMS}<Size>(\d+)</Size>"
)
CONTENTS = re.compile(r"<Contents>(.*?)</Contents>", re.S)
KEY = re.compile("<Key>([^<]*)<")
PARTS = [KEY, re.compile(ETAG), re.compile(r"<Size>(\d+)<")]
FOLDER = re.compile(r"<CommonPrefixes>\s*<Prefix>([^<]*)</Prefix>")
LAST_MODIFIED = re.compile("<LastModified>([^<]*)<")
NEXT = re.compile(r"<NextContinuationToken>([^<]*)</NextContinuationToken>")
IS_TRUNCATED = re.compile(r"<IsTruncated>\s*(\w+)")
ROOT, END = b"<ListBucketResult", b"</ListBucketResult>"
SHOWN_BYTES = 120
ENTITIES = {"&quot;": '"', "&#34;": '"', "&apos;": "'", "&#39;": "'"}


def check_page(page: bytes) -> None:
    """Check that an answer is a whole page of a listing: proxies cut answers short, and answer with pages of their own.

    Raises:
        StoreError: if it is not a listing.
        StoreUnavailable: if its end is missing.
    """
    if ROOT not in page[:1000]:
        raise StoreError(
            f"the answer is not a listing of S3, it begins with {page[:SHOWN_BYTES].decode(errors='replace')!r}: "
            "check the endpoint, and whether a proxy or a login page answers in its place"
        )
    if not page.rstrip().endswith(END):
        raise StoreUnavailable(
            f"a page of the listing was cut after {len(page)} bytes: check the network, and proxies before the server"
        )


def text_of(page: bytes) -> str:
    return page.decode(errors="surrogateescape")


def folders_of(page: str) -> list[str]:
    return list(_decode_names(FOLDER.findall(page), page))


def names_of(page: str) -> list[str]:
    """Return the folders and the keys of a page, each with its prefix."""
    return [*folders_of(page), *_decode_names(KEY.findall(page), page)]


def next_token(page: str) -> str:
    """Return the token of the next page; empty at the end."""
    found, truncated = NEXT.search(page), IS_TRUNCATED.search(page)
    token = unescape(found.group(1), ENTITIES) if found else ""
    if truncated and truncated.group(1).lower() in ("false", "0"):
        return ""
    if truncated and not token:
        raise StoreError(
            "the listing is cut off after its first page: the server marks it as truncated, but names no next page, "
            "as servers do that know only version 1 of ListObjects; update the server"
        )
    return token


def rows_of(page: str, prefix: str, constants: set[str]) -> list[StoredObject]:
    """Return the objects of a page, and add the ETags that turn out to say nothing to the constants."""
    rows = ROW.findall(page)
    if len(rows) != page.count("<Contents>"):
        rows = [_row(contents) for contents in CONTENTS.findall(page)]
    if "Contents>" in page and not rows:
        raise StoreError(f"the objects in the listing cannot be read: {page[page.index('Contents>') - 9 :][:200]!r}")
    if not rows:
        return []
    keys, etags, sizes = zip(*rows, strict=True)
    if "&" in (text := "".join(etags)):
        etags = tuple(unescape(item, ENTITIES) for item in etags)
    if not text.isascii():  # headers have no such characters
        constants |= {etag for etag in etags if not etag.isascii()}
    constants |= find_shared(etags, sizes)
    if not constants.isdisjoint(etags):
        etags = _with_times(page, constants, etags, sizes)
    skipped = len(prefix)
    return list(map(StoredObject, [key[skipped:] for key in _decode_names(keys, page)], map(int, sizes), etags))


def _with_times(page: str, constants: set[str], etags: Sequence[str], sizes: Sequence[str]) -> tuple[str, ...]:
    """Replace the ETags that say nothing by the time of the last change; an empty object has only one content."""
    times = LAST_MODIFIED.findall(page)
    if len(times) != len(etags):
        times = [""] * len(etags)
    return tuple(
        modified(time) if etag in constants and size != "0" else etag
        for etag, size, time in zip(etags, sizes, times, strict=True)
    )


def _row(contents: str) -> tuple[str, ...]:
    """Read an object from a server that writes the elements in another order."""
    parts = [pattern.search(contents) for pattern in PARTS]
    if not all(parts):
        raise StoreError(f"the listing has an object without a key, an ETag or a size: {contents[:200]!r}")
    return tuple(part.group(1) for part in parts if part)


def _decode_names(names: Sequence[str], page: str) -> Sequence[str]:
    """Decode names: servers percent-encode characters that XML does not allow, if they support encoding-type."""
    text = "".join(names)
    if "<EncodingType>url</EncodingType>" in page:
        return [_decoded(item) for item in names] if "%" in text or "+" in text else names
    return [unescape(name, ENTITIES) for name in names] if "&" in text else names


def _decoded(name: str) -> str:
    return unquote_to_bytes(name.replace("+", " ").encode(errors="surrogateescape")).decode(errors="surrogateescape")
