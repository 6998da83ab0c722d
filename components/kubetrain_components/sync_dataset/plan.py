"""The plan of a sync, made from listings alone, so that it can be printed and tested without files."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from json.encoder import encode_basestring as quoted
from operator import itemgetter
from typing import NamedTuple, NoReturn

from kubetrain_components.object_store.store import StoredObject
from kubetrain_trainer.errors import KubetrainError

MAX_NAME_BYTES = 255
SHOWN_PROBLEMS = 5
LINES_PER_HASH_UPDATE = 4096
ESCAPING = re.compile(r"(?:^|/)\.{0,2}(?:/|\Z)")
MAY_ESCAPE = ("\n\n", "\n/", "//", "/\n", "\n.", "/.")
"""Strings that reveal an empty part, or one that begins with a dot, in keys joined by newlines."""
CONTROLS = bytes([*range(ord("\n")), *range(ord("\n") + 1, 32), 127])
UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")  # keys that are not UTF-8 have surrogates


class Reusable(NamedTuple):
    """The version that already has an object, and its checksum there."""

    version: str
    checksum: str


@dataclass(frozen=True, kw_only=True)
class SyncPlan:
    dataset_uri: str
    sha256: str
    objects: tuple[StoredObject, ...]
    """Sorted by UTF-8 key."""
    unusable: tuple[str, ...] = ()
    """Keys that cannot be files, with the reasons: the other objects are downloaded, but no version is published."""
    exists: bool = False
    """The version is already published."""
    reuse: Mapping[str, Reusable] = field(default_factory=dict)
    """Objects that other versions have, by key."""

    @property
    def digest(self) -> str:
        return self.sha256[:16]

    @property
    def fetch(self) -> tuple[StoredObject, ...]:
        return () if self.exists else tuple(each for each in self.objects if each.key not in self.reuse)

    @property
    def bytes(self) -> int:
        return sum(each.size for each in self.objects)

    def check_keys(self) -> None:
        """
        Raises:
            KubetrainError: if keys cannot be files.
        """
        if self.unusable:
            _refuse(self.dataset_uri, self.unusable)


def plan_sync(dataset_uri: str, listed: Iterable[StoredObject]) -> SyncPlan:
    """Plan a sync from a listing.

    Raises:
        KubetrainError: if there is nothing to sync, or if keys conflict.
    """
    # Python sorts strings like their UTF-8 bytes.
    objects = tuple(sorted([each for each in listed if each[1] or not _is_folder(each)], key=itemgetter(0)))
    if not objects:
        raise KubetrainError(
            f"no objects under {dataset_uri}: check the bucket and the prefix, which must name a folder"
        )
    keys = [each.key for each in objects]
    problems = {} if _are_plain(keys) else {key: problem for key in keys if (problem := _problem_of(key))}
    if problems:
        objects = tuple(each for each in objects if each.key not in problems)
        keys = [each.key for each in objects]
    conflicts = [f"{key!r} is a file and a folder at once" for key in sorted(_folders(keys).intersection(keys))]
    conflicts += [f"{key!r} is listed twice" for key, following in pairwise(keys) if key == following]
    unusable = tuple(f"{key!r} {problem}" for key, problem in problems.items())
    if conflicts or not objects:
        _refuse(dataset_uri, [*conflicts, *unusable])
    return SyncPlan(dataset_uri=dataset_uri, sha256=listing_sha256(objects), objects=objects, unusable=unusable)


def listing_sha256(objects: Iterable[StoredObject]) -> str:
    """Return the hash of all keys, sizes and ETags, which identifies a dataset."""
    digest = hashlib.sha256()
    lines = (f"[{quoted(key)},{size},{quoted(etag)}]\n" for key, size, etag in objects)
    while text := "".join(islice(lines, LINES_PER_HASH_UPDATE)):
        digest.update(text.encode())
    return digest.hexdigest()


def _is_folder(each: StoredObject) -> bool:
    """Return True for the empty object that some tools create for a folder; the prefix itself has an empty key."""
    return each.size == 0 and (each.key == "" or each.key.endswith("/"))


def _refuse(dataset_uri: str, problems: Sequence[str]) -> NoReturn:
    shown = "; ".join(problems[:SHOWN_PROBLEMS])
    raise KubetrainError(
        f"{len(problems)} keys under {dataset_uri} cannot be files: {shown}; rename them or sync a narrower prefix"
    )


def _are_plain(keys: Sequence[str]) -> bool:
    """Return True if no key can have a problem; five times as fast as checking each."""
    text = "\n" + "\n".join(keys) + "\n"
    return (
        text.isascii()
        and text.count("\n") == len(keys) + 1
        and max(map(len, keys)) <= MAX_NAME_BYTES
        and not any(part in text for part in MAY_ESCAPE)
        and len(text.encode().translate(None, CONTROLS)) == len(text)
    )


def _problem_of(key: str) -> str | None:
    if ESCAPING.search(key):
        return "would be outside the target folder, or has an empty part"
    if UNPRINTABLE.search(key):
        return "has a control character, or is not UTF-8"
    if (len(key) > MAX_NAME_BYTES or not key.isascii()) and _longest_part(key) > MAX_NAME_BYTES:
        return f"has a part of more than {MAX_NAME_BYTES} bytes"
    return None


def _longest_part(key: str) -> int:
    return max(len(part.encode()) for part in key.split("/"))


def _folders(keys: Iterable[str]) -> set[str]:
    found: set[str] = set()
    last = ""
    for key in keys:
        folder = key.rpartition("/")[0]
        if folder != last:  # keys of a folder are adjacent
            last = folder
            found.update(_with_parents(folder))
    return found


def _with_parents(folder: str) -> Iterator[str]:
    while folder:
        yield folder
        folder = folder.rpartition("/")[0]
