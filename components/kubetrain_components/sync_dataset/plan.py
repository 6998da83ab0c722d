"""The plan of a sync, made from listings alone, so that it can be printed and tested without files."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from json.encoder import encode_basestring as quoted
from pathlib import Path
from typing import NoReturn, Protocol

from kubetrain_components.object_store.store import StoredObject
from kubetrain_components.sync_dataset.sorted_records import Sorted
from kubetrain_trainer.errors import KubetrainError

MAX_NAME_BYTES = 255
SHOWN_PROBLEMS = 5
LINES_PER_HASH_UPDATE = 4096
MAX_FOLDERS = 1000
ESCAPING = re.compile(r"(?:^|/)\.{0,2}(?:/|\Z)")
MAY_ESCAPE = ("\n\n", "\n/", "//", "/\n", "\n.", "/.")
"""Strings that reveal an empty part, or one that begins with a dot, in keys joined by newlines."""
CONTROLS = bytes([*range(ord("\n")), *range(ord("\n") + 1, 32), 127])
UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")  # keys that are not UTF-8 have surrogates


class Objects(Protocol):
    """The objects of a version, sorted by UTF-8 key, which may be too many for the memory."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[StoredObject]: ...


@dataclass(frozen=True, kw_only=True)
class SyncPlan:
    dataset_uri: str
    sha256: str
    objects: Objects
    bytes: int
    folders: tuple[str, ...] = ()
    """The first parts of the keys, sorted, up to a limit."""
    unusable: tuple[str, ...] = ()
    """Keys that cannot be files, with the reasons: the other objects are downloaded, but no version is published."""

    @property
    def digest(self) -> str:
        return self.sha256[:16]

    def check_keys(self) -> None:
        """
        Raises:
            KubetrainError: if keys cannot be files.
        """
        if self.unusable:
            _refuse(self.dataset_uri, self.unusable)


def plan_sync(dataset_uri: str, listed: Iterable[StoredObject], folder: Path | None = None) -> SyncPlan:
    """Plan a sync from a listing.

    Args:
        folder: Folder for temporary files.

    Raises:
        KubetrainError: if there is nothing to sync, or if keys conflict.
    """
    objects, problems = Sorted[StoredObject](StoredObject._make, folder), dict[str, str]()
    left = iter(listed)
    while batch := list(islice(left, LINES_PER_HASH_UPDATE)):
        objects.extend(_usable([item for item in batch if item[1] or not _is_folder(item)], problems))
    if not objects and not problems:
        raise KubetrainError(f"no objects under {dataset_uri}: check the URI, which must name a folder")
    survey = _Survey(objects)
    unusable = tuple(f"{key!r} {problems[key]}" for key in sorted(problems))
    if survey.conflicts or not objects:
        _refuse(dataset_uri, [*sorted(survey.conflicts), *unusable])
    return SyncPlan(
        dataset_uri=dataset_uri,
        sha256=listing_sha256(objects),
        objects=objects,
        bytes=survey.bytes,
        folders=tuple(sorted(survey.folders)),
        unusable=unusable,
    )


def _usable(objects: Sequence[StoredObject], problems: dict[str, str]) -> Iterable[StoredObject]:
    """Return the objects that can be files, and add the problems of the others by key."""
    keys = [item.key for item in objects]
    if not keys or _are_plain(keys):
        return objects
    found = {key: problem for key in keys if (problem := _problem_of(key))}
    problems.update(found)
    return [item for item in objects if item.key not in found]


class _Survey:
    """Bytes, folders and conflicting names of the objects, from one pass over them."""

    def __init__(self, objects: Iterable[StoredObject]) -> None:
        self.bytes = 0
        self.folders: list[str] = []
        self.conflicts: set[str] = set()
        begins: list[str] = []
        """The keys with which the present key begins: in sorted order, other keys may come between a and a/b."""
        last = "/"
        for key, size, _ in objects:
            self.bytes += size
            while begins and not key.startswith(begins[-1]):
                begins.pop()
            if begins:
                self._compare(key, begins)
            begins.append(key)
            if not key.startswith(last):
                last = self._add_folder(key)

    def _compare(self, key: str, begins: Sequence[str]) -> None:
        for begin in begins:
            if key == begin:
                self.conflicts.add(f"{key!r} is listed twice")
            elif key[len(begin)] == "/":
                self.conflicts.add(f"{begin!r} is a file and a folder at once")

    def _add_folder(self, key: str) -> str:
        folder, slash, _ = key.partition("/")
        if slash and len(self.folders) < MAX_FOLDERS:
            self.folders.append(folder)
        return f"{folder}/" if slash else "/"


def listing_sha256(objects: Iterable[StoredObject]) -> str:
    """Return the hash of all keys, sizes and tags, which identifies a dataset."""
    digest = hashlib.sha256()
    for lines in listing_lines(objects):
        digest.update(lines)
    return digest.hexdigest()


def listing_lines(objects: Iterable[StoredObject]) -> Iterator[bytes]:
    lines = (f"[{quoted(key)},{size},{quoted(etag)}]\n" for key, size, etag in objects)
    while text := "".join(islice(lines, LINES_PER_HASH_UPDATE)):
        yield text.encode()


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
