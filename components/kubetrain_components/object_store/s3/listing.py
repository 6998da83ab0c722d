"""What is under a prefix: pages of ListObjectsV2, read without parsing XML, several ranges of keys at a time.

Each page, of a thousand keys, follows from the one before: their latencies add up. So a long listing is split at
folders, which are found a level at a time, and its ranges are listed side by side.
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

# In the order in which S3 writes them.
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
"""Of what is no longer, no folders need to be found."""
DEEPEST_SPLIT = 3
ENTITIES = {"&quot;": '"', "&#34;": '"', "&apos;": "'", "&#39;": "'"}

T = TypeVar("T")
GetPage = Callable[[dict[str, str]], bytes]
"""From query parameters to the XML of a page."""


def list_objects(get_page: GetPage, prefix: str, ranges: int = RANGES) -> Iterator[StoredObject]:
    """By UTF-8 key; keys are relative to the prefix."""
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
    for found in _side_by_side([partial(_list_range, get_page, prefix, *span) for span in spans]):
        yield from found


def split_points(get_page: GetPage, prefix: str, ranges: int) -> list[str]:
    """Folders at which to split the keys into ranges, by key; none where there are no folders."""
    folders = [prefix]
    for _ in range(DEEPEST_SPLIT):
        below = [
            each for inner in _side_by_side([partial(_folders, get_page, each) for each in folders]) for each in inner
        ]
        folders = below or folders
        if not below or len(folders) >= ranges:
            break
    step = max(1, len(folders) // ranges)
    return sorted(folders)[::step][1 : ranges + 1]


def _side_by_side(calls: Sequence[Callable[[], list[T]]]) -> Iterator[list[T]]:
    """What the calls return, in their order. Their threads are daemons: nobody waits for a server that is silent."""
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
    """Those of the first page: enough to split by."""
    page = _text_of(get_page({"prefix": prefix, "delimiter": "/"}))
    return list(_names(FOLDER.findall(page), page))


def _list_range(get_page: GetPage, prefix: str, after: str, until: str | None) -> list[StoredObject]:
    return [each for rows in _pages(get_page, prefix, after, until) for each in rows]


def _pages(
    get_page: GetPage, prefix: str, after: str | None = None, until: str | None = None
) -> Iterator[list[StoredObject]]:
    """Keys beyond `after`, up to and with `until`."""
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
    return list(map(StoredObject, [key[skipped:] for key in _names(keys, page)], map(int, sizes), etags))


def _row(contents: str) -> tuple[str, ...]:
    """Of a server that writes its parts in an order of its own."""
    parts = [pattern.search(contents) for pattern in PARTS]
    if not all(parts):
        raise StoreError(f"the listing has an object without a key, an ETag or a size: {contents[:200]!r}")
    return tuple(part.group(1) for part in parts if part)


def _text_of(page: bytes) -> str:
    return page.decode(errors="surrogateescape")


def _names(written: Sequence[str], page: str) -> Sequence[str]:
    """Keys as they are: servers percent-encode what is not allowed in XML, if they know how."""
    together = "".join(written)
    if "<EncodingType>url</EncodingType>" in page:
        return [_decoded(each) for each in written] if "%" in together or "+" in together else written
    return [unescape(each, ENTITIES) for each in written] if "&" in together else written


def _decoded(name: str) -> str:
    return unquote_to_bytes(name.replace("+", " ").encode(errors="surrogateescape")).decode(errors="surrogateescape")
