"""Tags that identify the content of an object: its ETag, or the time of its last change if the ETag says nothing.

Some servers list files that they did not write themselves with an empty or constant ETag. The listing then writes
the time of the last change in its place, and requests are bound to that time instead.

Times, and ETags that are not hashes of the content, say nothing about objects elsewhere: they name their place too.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime

from kubetrain_components.object_store.s3.http_head import Headers
from kubetrain_components.object_store.store import StoredObject, StoreError

MODIFIED = "modified:"
"""Prefix of a time that stands for an ETag."""
MD5 = re.compile(r"[0-9a-fA-F]{32}(?:-\d+)?")
PLACE = re.compile(r"@[0-9a-f]{16}\Z")
ZEROS = "0" * 32
PLACEHOLDERS = frozenset({"", ZEROS, f"{ZEROS}-1", f"{ZEROS}-2", "d41d8cd98f00b204e9800998ecf8427e"})
"""ETags that say nothing about an object that has bytes; the last one is the MD5 of nothing."""


def find_shared(etags: Sequence[str], sizes: Sequence[str]) -> set[str]:
    """Return the ETags of a page that different contents share: contents of different sizes differ."""
    if len(set(etags)) == len(etags):
        return set()
    sizes_of: dict[str, set[str]] = {}
    for etag, size in zip(etags, sizes, strict=True):
        sizes_of.setdefault(etag, set()).add(size)
    return {etag for etag, found in sizes_of.items() if len(found) > 1}


def find_only(pages: Iterable[Sequence[StoredObject]]) -> set[str]:
    """Return the ETag that all of several objects have, unless it is an MD5, or nothing."""
    count, etags = 0, set[str]()
    for rows in pages:
        count += len(rows)
        etags.update(row.etag for row in rows)
        if not may_be_constant(etags):
            return set()
    return etags if count > 1 else set()


def may_be_constant(etags: set[str]) -> bool:
    """Return True for a single ETag that is not an MD5, which may or may not come from the content."""
    return len(etags) == 1 and not any(MD5.fullmatch(etag) or etag.startswith(MODIFIED) for etag in etags)


def place_of(*names: str) -> str:
    """Return what tags of this server, bucket and prefix end with if they are not hashes of the content."""
    return "@" + hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()[:16]


def placed(each: StoredObject, place: str) -> StoredObject:
    return each if MD5.fullmatch(each.etag) else each._replace(etag=each.etag + place)


def sent_etag(etag: str) -> str:
    """Return a tag without its place."""
    return PLACE.sub("", etag)


def condition(etag: str | None) -> dict[str, str]:
    """Return the header that binds a request to this content."""
    if not (etag := sent_etag(etag or "")):
        return {}
    if not etag.startswith(MODIFIED):
        return {"if-match": f'"{etag}"'}
    # The header has whole seconds, and some servers take a change in its second for a later one. is_of() compares.
    moment = _moment_of(etag).replace(microsecond=0) + timedelta(seconds=1)
    return {"if-unmodified-since": format_datetime(moment, usegmt=True)}


def write_condition(etag: str | None) -> dict[str, str]:
    """Return the argument that binds a write to this content, or to no content; no header binds it to a time."""
    if not etag:
        return {"IfNoneMatch": "*"}
    return {} if etag.startswith(MODIFIED) else {"IfMatch": f'"{sent_etag(etag)}"'}


def is_of(etag: str, headers: Headers) -> bool:
    """Return True if a response has this content, because some servers ignore conditions.

    Raises:
        StoreError: if the response does not tell.
    """
    if not etag.startswith(MODIFIED):
        return etag_of(headers) == sent_etag(etag)
    sent = headers.get("last-modified")
    try:
        return abs(parsedate_to_datetime(sent) - _moment_of(etag)) < timedelta(seconds=1)
    except (TypeError, ValueError):
        raise StoreError(
            "the server sends neither a usable ETag nor Last-Modified, so a change of an object would go unnoticed: "
            "let it send one of them"
        ) from None


def etag_of(headers: Headers) -> str:
    return headers.get("etag").removeprefix("W/").strip('"')


def modified(moment: str) -> str:
    """Return the tag for the time of the last change in a listing.

    Raises:
        StoreError: if it is not a time.
    """
    try:
        datetime.fromisoformat(moment)
    except ValueError:
        raise StoreError(
            f"the listing has objects without a usable ETag whose LastModified is '{moment}', so a change of an object "
            "would go unnoticed: let the server list one of them"
        ) from None
    return f"{MODIFIED}{moment}"


def _moment_of(etag: str) -> datetime:
    moment = datetime.fromisoformat(sent_etag(etag).removeprefix(MODIFIED))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
