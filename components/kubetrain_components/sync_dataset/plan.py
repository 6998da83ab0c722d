"""What a sync will do, worked out from listings alone: prints, differs and tests without touching a file."""

import hashlib
import re
import unicodedata
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
LINES_AT_ONCE = 4096
# Only empty parts and dots can leave a folder; only what UTF-8 cannot write comes as a surrogate.
STRAYING = re.compile(r"(?:^|/)\.{0,2}(?:/|\Z)")
MAY_STRAY = ("\n\n", "\n/", "//", "/\n", "\n.", "/.")
"""An empty part, or one that begins with a dot."""
CONTROLS = bytes([*range(ord("\n")), *range(ord("\n") + 1, 32), 127])
UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


class Reusable(NamedTuple):
    """Where an object is already."""

    version: str
    checksum: str


@dataclass(frozen=True, kw_only=True)
class SyncPlan:
    dataset_uri: str
    sha256: str
    objects: tuple[StoredObject, ...]
    """By UTF-8 key."""
    unusable: tuple[str, ...] = ()
    """Keys that cannot be files, and why: the others are fetched, but a version without these is none."""
    exists: bool = False
    """The version is there: nothing is to do."""
    reuse: Mapping[str, Reusable] = field(default_factory=dict)
    """By key: what another version has."""

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
            KubetrainError: naming the keys that cannot be files.
        """
        if self.unusable:
            _refuse(self.dataset_uri, self.unusable)


def plan_sync(dataset_uri: str, listed: Iterable[StoredObject]) -> SyncPlan:
    """What to sync from a listing: its objects, by key, and their digest.

    Raises:
        KubetrainError: where there is nothing to sync, or keys contradict one another.
    """
    # Text sorts as its UTF-8 does.
    objects = tuple(sorted([each for each in listed if each[1] or not _is_folder(each)], key=itemgetter(0)))
    if not objects:
        raise KubetrainError(
            f"no objects under {dataset_uri}: check the bucket and the prefix, which must name a folder"
        )
    problems = _problems_of([each.key for each in objects])
    if problems:
        objects = tuple(each for each in objects if each.key not in problems)
    keys = [each.key for each in objects]
    conflicts = [f"{key!r} is a file and a folder at once" for key in sorted(_folders(keys).intersection(keys))]
    conflicts += [f"{key!r} is there twice" for key, following in pairwise(keys) if key == following]
    unusable = tuple(f"{key!r} {problem}" for key, problem in problems.items())
    if conflicts or not objects:
        _refuse(dataset_uri, [*conflicts, *unusable])
    return SyncPlan(dataset_uri=dataset_uri, sha256=listing_sha256(objects), objects=objects, unusable=unusable)


def listing_sha256(objects: Iterable[StoredObject]) -> str:
    """What identifies a dataset: every object's key, size and ETag."""
    digest = hashlib.sha256()
    lines = (f"[{quoted(key)},{size},{quoted(etag)}]\n" for key, size, etag in objects)
    while text := "".join(islice(lines, LINES_AT_ONCE)):
        digest.update(text.encode())
    return digest.hexdigest()


def check_twins(plan: SyncPlan) -> None:
    """For a volume that takes some names for one another.

    Raises:
        KubetrainError: where two keys would be one file there.
    """
    seen: dict[str, str] = {}
    for key, _, _ in plan.objects:
        twin = seen.setdefault(unicodedata.normalize("NFC", key).casefold(), key)
        if twin != key:
            raise KubetrainError(
                f"{twin!r} and {key!r} under {plan.dataset_uri} are one file on this volume, which ignores case: "
                "rename one, or sync to another volume"
            )


def _is_folder(each: StoredObject) -> bool:
    """The empty object that some tools make to stand for a folder; under a plain prefix its key is empty."""
    return each.size == 0 and (each.key == "" or each.key.endswith("/"))


def _refuse(dataset_uri: str, problems: Sequence[str]) -> NoReturn:
    shown = "; ".join(problems[:SHOWN_PROBLEMS])
    raise KubetrainError(
        f"{len(problems)} keys under {dataset_uri} cannot be files: {shown}; rename them or sync a narrower prefix"
    )


def _problems_of(keys: Sequence[str]) -> dict[str, str]:
    return {} if _are_plain(keys) else {key: problem for key in keys if (problem := _problem_of(key))}


def _are_plain(keys: Sequence[str]) -> bool:
    """Whether surely none has a problem, found in a fifth of the time that asking each takes."""
    text = "\n" + "\n".join(keys) + "\n"
    return (
        text.isascii()
        and text.count("\n") == len(keys) + 1
        and max(map(len, keys)) <= MAX_NAME_BYTES
        and not any(part in text for part in MAY_STRAY)
        and len(text.encode().translate(None, CONTROLS)) == len(text)
    )


def _problem_of(key: str) -> str | None:
    if STRAYING.search(key):
        return "would leave the target folder, or has an empty part"
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
        if folder != last:  # those of one folder follow one another
            last = folder
            found.update(_and_those_around(folder))
    return found


def _and_those_around(folder: str) -> Iterator[str]:
    while folder:
        yield folder
        folder = folder.rpartition("/")[0]
