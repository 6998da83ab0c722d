"""The objects of a new version: which arrived, and which are missing because nothing on the volume has them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

from kubetrain_components.object_store.checksums import LOOKS_LIKE_MD5, checksum_of
from kubetrain_components.object_store.store import StoredObject, StoreError
from kubetrain_components.sync_dataset.download import Fetched
from kubetrain_components.sync_dataset.leftovers import check_space
from kubetrain_components.sync_dataset.locks import InUse, version_locked
from kubetrain_components.sync_dataset.manifest import Entry
from kubetrain_components.sync_dataset.partial_version import PartialVersion, partial_versions
from kubetrain_components.sync_dataset.plan import Objects, SyncPlan
from kubetrain_components.sync_dataset.publish import find_reusable
from kubetrain_components.sync_dataset.report import SyncReport
from kubetrain_components.sync_dataset.resume import IntactFiles
from kubetrain_components.sync_dataset.sorted_records import Sorted, paired

SHOWN_KEYS = 5
MAX_COMPARED = 5
"""Files that are hashed with MD5 if no download did that; the ETags of files encrypted with a key never match."""

OnResumed = Callable[[int, int], None]
"""Called with the number of objects that are intact, and of bytes that were hashed."""
Checksums = Sorted[tuple[str, str]]
"""Keys and checksums."""


class Arrivals:
    """The checksums of the objects that are in an unfinished version."""

    def __init__(self, staging: Path, plan: SyncPlan, partial: PartialVersion, report: SyncReport) -> None:
        self._staging = staging
        self._folder = staging / "versions"
        self._plan = plan
        self._partial = partial
        self._report = report
        self.checksums = Checksums(tuple, self._folder)
        self._etags = EtagEvidence(self._folder)

    def add(self, fetched: Fetched) -> None:
        self._add(fetched.entry)
        self._report.count(fetched)

    def check_etags(self) -> None:
        """
        Raises:
            StoreError: if objects are damaged in the store, as the ETags of others show.
        """
        self._etags.check(self._plan.dataset_uri, self._partial)

    def reuse_published(self) -> Objects:
        """Reuse the objects that other versions have; return the missing ones."""
        missing = self._no_objects()
        for each, reusable in find_reusable(self._staging, self._plan.objects):
            entry = reusable and Entry(each, reusable.checksum)
            source = reusable and f"{self._staging}/versions/{reusable.version}/data/{each.key}"
            if entry and source and (method := self._partial.reuse(source, entry)):
                self._count(method)
                self._add(entry)
            else:
                missing.add(each)
        return missing

    def reuse_interrupted(self, missing: Objects, on_resumed: OnResumed) -> Objects:
        """Reuse the intact objects that interrupted syncs of this source downloaded; return the missing ones."""
        files = IntactFiles()
        for other in partial_versions(self._staging):
            with ExitStack() as stack, suppress(InUse):
                if other.path != self._partial.path:
                    if not other.is_from(self._plan.dataset_uri):
                        continue
                    stack.enter_context(version_locked(self._staging, other.digest, wait=False))
                missing = self._reuse_from(other, missing, files, on_resumed)
        return missing

    def _reuse_from(
        self, other: PartialVersion, missing: Objects, files: IntactFiles, on_resumed: OnResumed
    ) -> Objects:
        added = Checksums(tuple, self._folder)
        if other.has_journal():
            self._partial.settle()
        with closing(files.of(self._recorded(other, missing), other.data)) as intact:
            for entries in intact:
                for entry in entries:
                    if other.path == self._partial.path or self._link(other, entry):
                        added.add((entry.object.key, entry.checksum))
                        self._etags.add(entry)
                on_resumed(self._report.resumed + len(added), files.bytes)
        self._report.resumed += len(added)
        self.checksums.extend(added)
        return self._without(missing, added) if len(added) else missing

    def _add(self, entry: Entry) -> None:
        self.checksums.add((entry.object.key, entry.checksum))
        self._etags.add(entry)

    def _recorded(self, other: PartialVersion, missing: Objects) -> Iterator[Entry]:
        """Yield the missing objects that the journal has: the last line for a key counts."""
        recorded = Sorted[tuple[str, int, str, str]](tuple, self._folder)
        recorded.extend((*entry.object, entry.checksum) for entry in other.recorded())
        for each, line in paired(missing, recorded):
            if line is not None and line[:3] == each and self._partial.may_reuse(entry := Entry(each, line[3])):
                yield entry

    def _without(self, missing: Objects, added: Checksums) -> Objects:
        left = self._no_objects()
        left.extend(each for each, found in paired(missing, added) if found is None)
        return left

    def _link(self, other: PartialVersion, entry: Entry) -> bool:
        """Add a file of another unfinished version."""
        is_added = self._partial.reuse(f"{other.data}/{entry.object.key}", entry) is not None
        if is_added:
            self._partial.record_all([entry])
        return is_added

    def _count(self, method: str) -> None:
        if method == "copied" and not self._report.copied:
            # Here rather than after hours of copying.
            check_space(self._staging, self._plan.bytes - self._partial.stored_bytes())
        setattr(self._report, method, getattr(self._report, method) + 1)

    def _no_objects(self) -> Sorted[StoredObject]:
        return Sorted(StoredObject._make, self._folder)


class EtagEvidence:
    """Evidence that the ETags of a source are MD5s: some servers make up ETags that only look like MD5s.

    One object cannot tell: if its bytes arrive twice but do not have the MD5 in its ETag, either the server made up the
    ETag, or the object is damaged in the store. The other objects tell which.
    """

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
        hashed = (replace(item, checksum=checksum_of(data / item.object.key, "md5")) for item in self._comparable)
        return any(entry.has_md5_etag for entry in hashed)
