"""What a sync will do, worked out from listings alone: prints, differs and tests without touching a file."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kubetrain_components.object_store.store import StoredObject
from kubetrain_trainer.errors import KubetrainError

LONGEST_NAME_BYTES = 255
SHOWN_PROBLEMS = 5


@dataclass(frozen=True, kw_only=True)
class SyncPlan:
    source: str
    sha256: str
    objects: tuple[StoredObject, ...]
    """By UTF-8 key."""
    exists: bool = False
    """The version is there: nothing is to do."""
    reuse: Mapping[str, str] = field(default_factory=dict)
    """From key to the digest of a version that has the same object."""

    @property
    def digest(self) -> str:
        return self.sha256[:16]

    @property
    def fetch(self) -> tuple[StoredObject, ...]:
        return () if self.exists else tuple(each for each in self.objects if each.key not in self.reuse)

    @property
    def bytes(self) -> int:
        return sum(each.size for each in self.objects)

    def reusing(self, known: Mapping[StoredObject, str]) -> "SyncPlan":
        """The same with what other versions hold, known by the digest of one that does."""
        return replace(self, reuse={each.key: known[each] for each in self.objects if each in known})


def plan_sync(source: str, listed: Iterable[StoredObject]) -> SyncPlan:
    """What to sync from a listing: its objects, by key, and their digest.

    Raises:
        KubetrainError: where there is nothing to sync, or a key cannot be a file below the target.
    """
    objects = sorted((each for each in listed if not _is_folder(each)), key=lambda each: each.key.encode())
    if not objects:
        raise KubetrainError(f"no objects under {source}: check the bucket and the prefix, which must name a folder")
    _check_keys(source, objects)
    return SyncPlan(source=source, sha256=listing_sha256(objects), objects=tuple(objects))


def listing_sha256(objects: Iterable[StoredObject]) -> str:
    """What identifies a dataset: every object's key, size and ETag."""
    digest = hashlib.sha256()
    for each in objects:
        line = json.dumps([each.key, each.size, each.etag], ensure_ascii=False, separators=(",", ":"))
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def _is_folder(each: StoredObject) -> bool:
    """The empty object that some tools make to stand for a folder; under a plain prefix its key is empty."""
    return each.size == 0 and (each.key == "" or each.key.endswith("/"))


def _check_keys(source: str, objects: list[StoredObject]) -> None:
    problems = [f"{each.key!r} {problem}" for each in objects if (problem := _problem_of(each.key))]
    folders = {parent for each in objects for parent in _parents(each.key)}
    problems += [f"{each.key!r} is a file and a folder at once" for each in objects if each.key in folders]
    if problems:
        shown = "; ".join(problems[:SHOWN_PROBLEMS])
        raise KubetrainError(
            f"{len(problems)} keys under {source} cannot be files: {shown}; rename them or sync a narrower prefix"
        )


def _problem_of(key: str) -> str | None:
    parts = key.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "would leave the target folder, or has an empty part"
    if any(ord(character) < 32 for character in key):
        return "has a control character"
    if any(len(part.encode()) > LONGEST_NAME_BYTES for part in parts):
        return f"has a part of more than {LONGEST_NAME_BYTES} bytes"
    return None


def _parents(key: str) -> list[str]:
    parts = key.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]
