"""Evidence that the ETags of a source are MD5s: some servers make up ETags that only look like MD5s.

One object cannot tell: if its bytes arrive twice but do not have the MD5 in its ETag, either the server made up the
ETag, or the object is damaged in the store. The other objects tell which.
"""

from dataclasses import replace
from pathlib import Path

from kubetrain_components.object_store.checksums import LOOKS_LIKE_MD5, checksum_of
from kubetrain_components.object_store.store import StoreError
from kubetrain_components.sync_dataset.manifest import Entry
from kubetrain_components.sync_dataset.partial_version import PartialVersion
from kubetrain_components.sync_dataset.sorted_records import Sorted

SHOWN_KEYS = 5
MAX_COMPARED = 5
"""Files that are hashed with MD5 if no download did that; the ETags of files encrypted with a key never match."""


class EtagEvidence:
    def __init__(self, folder: Path) -> None:
        """
        Args:
            folder: Folder for temporary files.
        """
        self._are_md5 = False
        self._comparable: list[Entry] = []
        """The first objects with another checksum whose ETags may be MD5s."""
        self._doubtful = Sorted[tuple[str]](tuple, folder)

    def add(self, entry: Entry) -> None:
        """Add an object, also one that was published before: the others may now show that it is damaged."""
        has_md5_etag = entry.has_md5_etag
        if has_md5_etag:
            self._are_md5 = True
        elif has_md5_etag is False:
            self._doubtful.add((entry.object.key,))
        elif len(self._comparable) < MAX_COMPARED and entry.object.size and LOOKS_LIKE_MD5.fullmatch(entry.object.etag):
            self._comparable.append(entry)

    def check(self, source: str, partial: PartialVersion) -> None:
        """Discard objects that differ from their ETags if the ETags of others are MD5s.

        Raises:
            StoreError: if there are any.
        """
        if not self._doubtful or not (self._are_md5 or self._is_any_md5(partial.data)):
            return
        partial.note_damage()
        shown: list[str] = []
        for (key,) in self._doubtful:
            partial.discard(key)
            shown += [repr(key)] if len(shown) < SHOWN_KEYS else []
        raise StoreError(
            f"objects of {source} are damaged in the store ({len(self._doubtful)}: {', '.join(shown)}): the same bytes "
            "arrived twice, but their MD5 is not the ETag, as it is for other objects; upload them again"
        )

    def _is_any_md5(self, data: Path) -> bool:
        hashed = (replace(each, checksum=checksum_of(data / each.object.key, "md5")) for each in self._comparable)
        return any(entry.has_md5_etag for entry in hashed)
