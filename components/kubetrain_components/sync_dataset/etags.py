"""Evidence that the ETags of a source are MD5s: some servers make up ETags that only look like MD5s.

One object cannot tell: if its bytes arrive twice but do not have the MD5 in its ETag, either the server made up the
ETag, or the object is damaged in the store. The other objects tell which.
"""

from pathlib import Path

from kubetrain_components.object_store.store import StoreError
from kubetrain_components.sync_dataset.manifest import Entry
from kubetrain_components.sync_dataset.partial_version import PartialVersion
from kubetrain_components.sync_dataset.sorted_records import Sorted

SHOWN_KEYS = 5


class EtagEvidence:
    def __init__(self, folder: Path) -> None:
        """
        Args:
            folder: Folder for temporary files.
        """
        self._are_md5 = False
        self._doubtful = Sorted[tuple[str]](tuple, folder)

    def add(self, entry: Entry) -> None:
        """Add an object, also one that was published before: the others may now show that it is damaged."""
        if entry.has_md5_etag:
            self._are_md5 = True
        elif entry.has_md5_etag is False:
            self._doubtful.add((entry.object.key,))

    def check(self, source: str, partial: PartialVersion) -> None:
        """Discard objects that differ from their ETags if the ETags of others are MD5s.

        Raises:
            StoreError: if there are any.
        """
        if not self._are_md5 or not self._doubtful:
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
