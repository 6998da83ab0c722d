"""The objects under a prefix, from pages of ListObjectsV2 that are read without an XML parser.

A page has a thousand keys, and requesting it takes a token from the previous page, so latencies add up. A long
listing is therefore split at folders into ranges of keys, which are listed in parallel.
"""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import TypeVar
from urllib.parse import unquote_to_bytes
from xml.sax.saxutils import unescape

from kubetrain_components.object_store.store import StoredObject, StoreError

# The elements of an object, in the order in which S3 writes them.
ETAG = r'<ETag>(?:&quot;|&#34;|")?([^<&"]*)'
CHECKSUMS = r"(?:<Checksum\w+>[^<]*</Checksum\w+>\s*)*"
ROW = re.compile(
    rf"<Key>([^<]*)</Key>\s*<LastModified>[^<]*</LastModified>\s*{ETAG}[^<]*</ETag>\s*{CHECKSUMS}<Size>(\d+)</Size>"
)
CONTENTS = re.compile(r"<Contents>(.*?)</Contents>", re.S)
PARTS = [re.compile(pattern) for pattern in ("<Key>([^<]*)<", ETAG, r"<Size>(\d+)<")]
FOLDER = re.compile(r"<CommonPrefixes>\s*<Prefix>([^<]*)</Prefix>")
NEXT = re.compile(r"<NextContinuationToken>([^<]*)</NextContinuationToken>")
RANGES = 16
PAGES_BEFORE_SPLIT = 8
"""Shorter listings are not split."""
MAX_SPLIT_DEPTH = 3
ENTITIES = {"&quot;": '"', "&#34;": '"', "&apos;": "'", "&#39;": "'"}

T = TypeVar("T")
GetPage = Callable[[dict[str, str]], bytes]
"""Returns the XML of the page for these query parameters."""


def list_objects(get_page: GetPage, prefix: str, ranges: int = RANGES) -> Iterator[StoredObject]:
    """List objects sorted by UTF-8 key, with keys relative to the prefix."""
    last = ""
    pages = _pages(get_page, prefix)
    for rows in islice(pages, PAGES_BEFORE_SPLIT):
        yield from rows
        last = rows[-1].key if rows else last
    following = next(pages, None)
    if following is None:
        return
    yield from following
    last = prefix + (following[-1].key if following else last)
    bounds = [last, *(each for each in split_points(get_page, prefix, ranges) if each > last)]
    spans = zip(bounds, [*bounds[1:], None], strict=True)
    for found in _run_in_parallel([partial(_list_range, get_page, prefix, *span) for span in spans]):
        yield from found


def split_points(get_page: GetPage, prefix: str, ranges: int) -> list[str]:
    """Return the folders at which to split the keys into ranges, sorted; empty without folders."""
    folders = [prefix]
    for _ in range(MAX_SPLIT_DEPTH):
        found = _run_in_parallel([partial(_folders, get_page, each) for each in folders])
        below = [each for subfolders in found for each in subfolders]
        folders = below or folders
        if not below or len(folders) >= ranges:
            break
    step = max(1, len(folders) // ranges)
    return sorted(folders)[::step][1 : ranges + 1]


def _run_in_parallel(calls: Sequence[Callable[[], list[T]]]) -> Iterator[list[T]]:
    """Run calls in parallel and return their results in order; daemon threads do not block exit if a server hangs."""
    ends = [SimpleQueue[list[T] | BaseException]() for _ in calls]

    def run(number: int) -> None:
        try:
            ends[number].put(calls[number]())
        except BaseException as error:  # noqa: BLE001 - for the thread that waits for it
            ends[number].put(error)

    for number in range(len(calls)):
        threading.Thread(target=run, args=(number,), daemon=True).start()
    for end in ends:
        outcome = end.get()
        if isinstance(outcome, BaseException):
            raise outcome
        yield outcome


def _folders(get_page: GetPage, prefix: str) -> list[str]:
    """Return the folders on the first page, which are enough to split by."""
    page = _text_of(get_page({"prefix": prefix, "delimiter": "/"}))
    return list(_decode_names(FOLDER.findall(page), page))


def _list_range(get_page: GetPage, prefix: str, after: str, until: str | None) -> list[StoredObject]:
    return [each for rows in _pages(get_page, prefix, after, until) for each in rows]


def _pages(
    get_page: GetPage, prefix: str, after: str | None = None, until: str | None = None
) -> Iterator[list[StoredObject]]:
    """Yield the pages with the keys after `after`, up to and including `until`."""
    query = {"prefix": prefix} | ({"start-after": after} if after else {})
    limit = None if until is None else until.removeprefix(prefix)
    while True:
        page = _text_of(get_page(query))
        rows = rows_of(page, prefix)
        if limit is not None and rows and rows[-1].key > limit:
            yield [each for each in rows if each.key <= limit]
            return
        yield rows
        token = NEXT.search(page)
        if token is None:
            return
        query["continuation-token"] = unescape(token.group(1), ENTITIES)


def rows_of(page: str, prefix: str) -> list[StoredObject]:
    rows = ROW.findall(page)
    if len(rows) != page.count("<Contents>"):
        rows = [_row(contents) for contents in CONTENTS.findall(page)]
    if not rows:
        return []
    keys, etags, sizes = zip(*rows, strict=True)
    skipped = len(prefix)
    return list(map(StoredObject, [key[skipped:] for key in _decode_names(keys, page)], map(int, sizes), etags))


def _row(contents: str) -> tuple[str, ...]:
    """Read an object from a server that writes the elements in another order."""
    parts = [pattern.search(contents) for pattern in PARTS]
    if not all(parts):
        raise StoreError(f"the listing has an object without a key, an ETag or a size: {contents[:200]!r}")
    return tuple(part.group(1) for part in parts if part)


def _text_of(page: bytes) -> str:
    return page.decode(errors="surrogateescape")


def _decode_names(names: Sequence[str], page: str) -> Sequence[str]:
    """Decode names: servers percent-encode characters that XML does not allow, if they support encoding-type."""
    text = "".join(names)
    if "<EncodingType>url</EncodingType>" in page:
        return [_decoded(each) for each in names] if "%" in text or "+" in text else names
    return [unescape(each, ENTITIES) for each in names] if "&" in text else names


def _decoded(name: str) -> str:
    return unquote_to_bytes(name.replace("+", " ").encode(errors="surrogateescape")).decode(errors="surrogateescape")
