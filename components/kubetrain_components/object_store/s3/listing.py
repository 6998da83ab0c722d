"""The objects under a prefix, from pages of ListObjectsV2.

A page has a thousand keys, and requesting it takes a token from the previous page, so latencies add up. A long
listing is therefore split at folders into ranges of keys, which are listed in parallel.
"""

import marshal
import re
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from operator import call
from queue import Full, Queue
from tempfile import TemporaryFile
from typing import IO, TypeVar

from kubetrain_components.object_store.s3.etags import PLACEHOLDERS, find_only, may_be_constant
from kubetrain_components.object_store.s3.listing_page import folders_of, names_of, next_token, rows_of, text_of
from kubetrain_components.object_store.store import StoredObject, StoreError

RANGES = 16
PAGES_BEFORE_SPLIT = 8
"""Shorter listings are not split."""
MAX_SPLIT_DEPTH = 3
MAX_WAITING_PAGES = 64
MAX_UNSEEN_NAMES = 100
"""With more, it is cheaper to list again from end to end than to look under each."""
POLL_SECONDS = 0.5
T = TypeVar("T")
GetPage = Callable[[dict[str, str]], bytes]
"""Returns the XML of the page for these query parameters."""


def list_objects(get_page: GetPage, prefix: str, ranges: int = RANGES) -> Iterator[StoredObject]:
    """List objects, with keys relative to the prefix, in any order."""
    constants = set(PLACEHOLDERS)
    pages = _checked_pages(get_page, prefix, constants)
    seen: list[StoredObject] = []
    for rows in islice(pages, PAGES_BEFORE_SPLIT):
        yield from rows
        seen += rows
    following = next(pages, None)
    if following is None:
        return
    yield from following
    seen += following
    with TemporaryFile() as spool:
        # Some servers list folder by folder: their ranges overlap, so that only one listing from end to end is right.
        is_right = bool(seen) and _is_sorted(seen) and _spool_rest(get_page, prefix, ranges, constants, seen, spool)
        for rows in _spooled(spool) if is_right else pages:
            yield from rows


def _checked_pages(get_page: GetPage, prefix: str, constants: set[str]) -> Iterator[list[StoredObject]]:
    """Yield all pages; if the first one has a single ETag, first find out whether all objects have it."""
    pages = _pages(get_page, prefix, constants)
    first = next(pages)
    if may_be_constant({item.etag for item in first}):
        found = set(constants)
        constants |= find_only(_pages(get_page, prefix, found)) | found
        pages = _pages(get_page, prefix, constants)
    else:
        yield first
    yield from pages


def _spool_rest(
    get_page: GetPage, prefix: str, ranges: int, constants: set[str], seen: Sequence[StoredObject], spool: IO[bytes]
) -> bool:
    """List what follows the objects seen in parallel ranges; return False if some of it may be missing."""
    last = prefix + seen[-1].key
    folders = find_folders(get_page, prefix, ranges)
    bounds = [last, *(point for point in split_points(folders, ranges) if point > last)]
    beside = _run_in_parallel([partial(_names_before, get_page, item) for item in _folders_above(bounds, prefix)])
    unseen = UnseenNames(name.removeprefix(prefix) for names in (folders, *beside) for name in names)
    unseen.see([item.key for item in seen])
    spans = zip(bounds, [*bounds[1:], None], strict=True)
    # Each range has its own copy: what one finds must not depend on how fast another is.
    listed = [_pages(get_page, prefix, set(constants), *span) for span in spans]
    return _spool_ranges(listed, spool, unseen) and _are_empty(get_page, [prefix + item for item in unseen])


class UnseenNames:
    """Names that a listing must have: if one is missing but not empty, its ranges were not in the order of keys' bytes.

    A server that lists folder by folder puts "train/" before "train.csv" and "train-extra/". A range of keys ends at
    the first key after it, so that what such a server lists later is lost, although each page is in order.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names) - {""}
        self._sorted = sorted(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def see(self, keys: Sequence[str]) -> None:
        """Record the keys of a page, sorted."""
        if not self._names:
            return
        first, last = keys[0], keys[-1]
        near = self._sorted[bisect_left(self._sorted, first) : bisect_right(self._sorted, last)]
        self._names.difference_update(item for item in near if keys[bisect_left(keys, item)].startswith(item))
        self._names.difference_update(first[: slash.end()] for slash in re.finditer("/", first))


def _spool_ranges(ranges: Sequence[Iterator[list[StoredObject]]], spool: IO[bytes], unseen: UnseenNames) -> bool:
    """List ranges in parallel; return False if one is not in order.

    The pages wait in a file, because millions of objects would take gigabytes of memory.
    """
    last_keys = [""] * len(ranges)
    with closing(_merged(ranges)) as merged:
        for number, rows in merged:
            if not rows:
                continue
            if rows[0].key < last_keys[number] or not _is_sorted(rows):
                return False
            last_keys[number] = rows[-1].key
            unseen.see([row.key for row in rows])
            marshal.dump(list(map(tuple, rows)), spool)
    return True


def _are_empty(get_page: GetPage, names: Sequence[str]) -> bool:
    """Return True if these few names have no objects.

    Servers name folders whose objects are all deleted, in a versioned bucket or since the folders were listed.
    """
    if len(names) > MAX_UNSEEN_NAMES:
        return False
    return not any(_run_in_parallel([partial(_first_objects, get_page, name) for name in names]))


def _spooled(spool: IO[bytes]) -> Iterator[list[StoredObject]]:
    end = spool.tell()
    spool.seek(0)
    while spool.tell() < end:
        yield list(map(StoredObject._make, marshal.load(spool)))  # noqa: S302 - our own


def _is_sorted(objects: Sequence[StoredObject]) -> bool:
    keys = [item.key for item in objects]
    return keys == sorted(keys)


def find_folders(get_page: GetPage, prefix: str, ranges: int) -> list[str]:
    """Return folders to split the keys at, sorted: those of the highest level that has enough."""
    folders = [prefix]
    for _ in range(MAX_SPLIT_DEPTH):
        found = _run_in_parallel([partial(_folders, get_page, folder) for folder in folders])
        below = [subfolder for subfolders in found for subfolder in subfolders]
        folders = below or folders
        if not below or len(folders) >= ranges:
            break
    return sorted(folders)


def split_points(folders: Sequence[str], ranges: int) -> Sequence[str]:
    step = max(1, len(folders) // ranges)
    return folders[::step][1 : ranges + 1]


def _folders_above(paths: Sequence[str], prefix: str) -> list[str]:
    """Return the folders that the paths are in, or are."""
    ends = ((path, end) for path in paths for end in range(len(prefix), len(path)) if path[end] == "/")
    return sorted({path[: end + 1] for path, end in ends})


def _run_in_parallel(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Run calls in parallel and return their results, in any order."""
    with closing(_merged([map(call, [item]) for item in calls])) as results:
        return [result for _, result in results]


def _merged(ranges: Sequence[Iterator[T]]) -> Generator[tuple[int, T], None, None]:
    """Read the ranges in parallel and yield their pages as they come, with the number of the range.

    Daemon threads do not block exit if a server hangs.
    """
    waiting, is_over = Queue[tuple[int, T] | BaseException | None](MAX_WAITING_PAGES), threading.Event()

    def put(outcome: tuple[int, T] | BaseException | None) -> bool:
        while not is_over.is_set():
            with suppress(Full):
                waiting.put(outcome, timeout=POLL_SECONDS)
                return True
        return False

    def read(number: int) -> None:
        try:
            if all(put((number, page)) for page in ranges[number]):
                put(None)
        except BaseException as error:  # noqa: BLE001 - for the thread that waits for it
            put(error)

    for number in range(len(ranges)):
        threading.Thread(target=read, args=(number,), daemon=True).start()
    try:
        running = len(ranges)
        while running:
            outcome = waiting.get()
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome is None:
                running -= 1
            else:
                yield outcome
    finally:
        is_over.set()


def _folders(get_page: GetPage, prefix: str) -> list[str]:
    """Return the folders on the first page, which are enough to split by."""
    return folders_of(text_of(get_page({"prefix": prefix, "delimiter": "/"})))


def _first_objects(get_page: GetPage, prefix: str) -> list[StoredObject]:
    """Return objects under the prefix, if any; an empty page may precede them, if the server skips deleted ones."""
    return next(filter(None, _pages(get_page, prefix, set())), [])


def _names_before(get_page: GetPage, folder: str) -> list[str]:
    """Return what sorts before a folder and begins with its name, which some servers list after it."""
    page = text_of(get_page({"prefix": folder.removesuffix("/"), "delimiter": "/"}))
    return [item for item in names_of(page) if item < folder]


def _pages(
    get_page: GetPage, prefix: str, constants: set[str], after: str | None = None, until: str | None = None
) -> Iterator[list[StoredObject]]:
    """Yield the pages with the keys after `after`, up to and including `until`.

    Args:
        constants: The ETags that say nothing; those that turn out to are added.
    """
    query = {"prefix": prefix} | ({"start-after": after} if after else {})
    limit = None if until is None else until.removeprefix(prefix)
    tokens, firsts = set[str](), set[str]()
    while True:
        page = text_of(get_page(query))
        rows = rows_of(page, prefix, constants)
        if limit is not None and rows and rows[-1].key > limit and _is_sorted(rows):
            yield [row for row in rows if row.key <= limit]
            return
        yield rows
        token = next_token(page)
        if not token:
            return
        first = rows[0].key if rows else ""
        if token in tokens or (first and first in firsts):
            raise StoreError("the listing begins again after some pages, so its end cannot be found: update the server")
        tokens.add(token)
        firsts.add(first)
        query["continuation-token"] = token
