"""What is under a prefix: pages of ListObjectsV2, read without parsing XML, several ranges of keys at a time.

Each page, of a thousand keys, follows from the one before: their latencies add up. So a long listing is split at
folders, which are found a level at a time, and its ranges are listed side by side.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote_to_bytes
from xml.sax.saxutils import unescape

from kubetrain_components.object_store.store import StoredObject, StoreError

# In the order in which S3 writes them.
ROW = re.compile(rb"<Key>([^<]*)</Key>.*?<ETag>([^<]*)</ETag>.*?<Size>(\d+)</Size>", re.S)
CONTENTS = re.compile(rb"<Contents>(.*?)</Contents>", re.S)
PART = re.compile(rb"<(Key|ETag|Size)>([^<]*)</")
FOLDER = re.compile(rb"<CommonPrefixes>\s*<Prefix>([^<]*)</Prefix>")
NEXT = re.compile(rb"<NextContinuationToken>([^<]*)</NextContinuationToken>")
RANGES = 32
DEEPEST_SPLIT = 3
ENTITIES = {"&quot;": '"', "&#34;": '"', "&apos;": "'", "&#39;": "'"}

GetPage = Callable[[dict[str, str]], bytes]
"""From query parameters to the XML of a page."""


def list_objects(get_page: GetPage, prefix: str, ranges: int = RANGES) -> Iterator[StoredObject]:
    """By UTF-8 key; keys are relative to the prefix."""
    first = get_page({"prefix": prefix})
    if not NEXT.search(first):
        yield from rows_of(first, prefix)
        return
    bounds = split_points(get_page, prefix, ranges)
    with ThreadPoolExecutor(max(1, min(ranges, len(bounds) + 1))) as pool:
        parts = [
            pool.submit(_list_range, get_page, prefix, after, until)
            for after, until in zip([None, *bounds], [*bounds, None], strict=True)
        ]
        try:
            for part in parts:
                yield from part.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def split_points(get_page: GetPage, prefix: str, ranges: int) -> list[str]:
    """Folders at which to split the keys into ranges, by key; none where there are no folders."""
    folders = [prefix]
    with ThreadPoolExecutor(ranges) as pool:
        for _ in range(DEEPEST_SPLIT):
            below = [each for inner in pool.map(lambda each: _folders(get_page, each), folders) for each in inner]
            if not below:
                break
            folders = below
            if len(folders) >= ranges:
                break
    if folders == [prefix]:
        return []
    step = max(1, len(folders) // ranges)
    return sorted(folders)[::step][1 : ranges + 1] if len(folders) > 1 else []


def _folders(get_page: GetPage, prefix: str) -> list[str]:
    """Those of the first page: enough to split by."""
    page = get_page({"prefix": prefix, "delimiter": "/"})
    return [_text(raw, page) for raw in FOLDER.findall(page)]


def _list_range(get_page: GetPage, prefix: str, after: str | None, until: str | None) -> Sequence[StoredObject]:
    """Keys beyond `after`, up to and with `until`."""
    query = {"prefix": prefix} | ({"start-after": after} if after is not None else {})
    limit = None if until is None else until.removeprefix(prefix)
    found: list[StoredObject] = []
    while True:
        page = get_page(query)
        found += rows_of(page, prefix)
        if limit is not None and found and found[-1].key > limit:
            return [each for each in found if each.key <= limit]
        token = NEXT.search(page)
        if token is None:
            return found
        query["continuation-token"] = unescape(token.group(1).decode(), ENTITIES)


def rows_of(page: bytes, prefix: str) -> list[StoredObject]:
    rows = ROW.findall(page)
    if len(rows) != page.count(b"<Contents>"):
        rows = [_row(contents) for contents in CONTENTS.findall(page)]
    skipped = len(prefix)
    if b"%" not in page and b"+" not in page and b"&" not in page.replace(b"&quot;", b""):
        return [StoredObject(key.decode()[skipped:], int(size), _etag(etag)) for key, etag, size in rows]
    return [StoredObject(_text(key, page)[skipped:], int(size), _etag(etag)) for key, etag, size in rows]


def _row(contents: bytes) -> tuple[bytes, bytes, bytes]:
    """Of a server that writes its parts in an order of its own."""
    parts = dict(PART.findall(contents))
    if parts.keys() != {b"Key", b"ETag", b"Size"}:
        raise StoreError(f"the listing has an object without a key, an ETag or a size: {contents[:200]!r}")
    return parts[b"Key"], parts[b"ETag"], parts[b"Size"]


def _is_encoded(page: bytes) -> bool:
    return b"<EncodingType>url</EncodingType>" in page


def _text(raw: bytes, page: bytes) -> str:
    """A key as it is: servers percent-encode what is not allowed in XML, if they know how."""
    if _is_encoded(page):
        return unquote_to_bytes(raw.replace(b"+", b" ")).decode(errors="surrogateescape")
    return unescape(raw.decode(errors="surrogateescape"), ENTITIES)


def _etag(raw: bytes) -> str:
    return raw.decode().replace("&quot;", "").replace("&#34;", "").strip('"')
