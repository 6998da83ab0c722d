"""The download of one object to its file, resumed after interruptions and verified by the store's checksum."""

import threading
import time
from dataclasses import dataclass
from math import inf

from kubetrain_components.object_store.checksums import (
    DEFAULT_ALGORITHM,
    HASHERS,
    Hasher,
    algorithm_of,
    checksum_of,
    format_checksum,
)
from kubetrain_components.object_store.retries import MAX_CORRUPT_DOWNLOADS, Retries
from kubetrain_components.object_store.store import (
    ObjectChanged,
    ObjectContent,
    ObjectStore,
    StoredObject,
    StoreError,
    StoreUnavailable,
)
from kubetrain_components.sync_dataset.in_flight import InFlight
from kubetrain_components.sync_dataset.large_object import LargeObject, Span
from kubetrain_components.sync_dataset.manifest import Entry
from kubetrain_components.sync_dataset.partial_version import PartialVersion
from kubetrain_trainer.durable_files import write_at


class NotAsListed(ObjectChanged):
    def __init__(self, wanted: StoredObject, error: ObjectChanged) -> None:
        super().__init__(str(error))
        self.wanted = wanted


class Stopped(StoreError):
    """The sync ended before the download of this object."""


@dataclass(frozen=True, slots=True)
class Fetched:
    entry: Entry
    is_verified: bool
    """False if the store reported no checksum, or an ETag that is not the MD5 of its content."""


class Downloader:
    """Downloads objects in one thread."""

    def __init__(self, store: ObjectStore, partial: PartialVersion, in_flight: InFlight, stop: threading.Event) -> None:
        self.bytes = 0
        self.completed = 0
        """Number of objects, and parts of large ones."""
        self.waiting_since = inf
        """Time of the last chunk, or of the start of the download; infinite between downloads."""
        self._store = store
        self._partial = partial
        self._in_flight = in_flight
        self._stop = stop

    def download(self, wanted: StoredObject, before: str = "") -> Fetched:
        """Download a whole object, again if it arrives corrupt.

        An ETag that looks like an MD5 is not believed against bytes that arrive twice.

        Args:
            before: The checksum of the bytes that arrived before, if they were not as expected.

        Raises:
            StoreError: if it cannot be downloaded intact.
        """
        for _ in range(MAX_CORRUPT_DOWNLOADS):
            with self._partial.new_file(wanted.key) as file:
                checksum, reported = self._receive(wanted, 0, wanted.size, file.descriptor)
                is_verified = reported.checksum == checksum
                is_made_up = reported.is_etag and checksum == before
                file.is_complete = is_verified or is_made_up or reported.checksum is None
            if file.is_complete:
                return self._fetched(wanted, checksum, is_verified=is_verified)
            before = checksum
        raise StoreError(
            f"{self._store.uri} object {wanted.key!r} arrived corrupt {MAX_CORRUPT_DOWNLOADS} times: "
            "it is damaged in the store or by the network; upload it again, or check the network"
        )

    def download_part(self, large: LargeObject, span: Span) -> Fetched | None:
        """Download a part, unless it arrived earlier, and return the object if it is complete."""
        checksum = large.recorded_part(span)
        if checksum is None:
            checksum = self._receive_part(large, span)
        else:
            self.bytes += span[1] - span[0]
        return self._finish(large) if large.add_part(span, checksum) else None

    def _receive_part(self, large: LargeObject, span: Span) -> str:
        with large.path.open("r+b", buffering=0) as file:
            checksum, _ = self._receive(large.object, *span, file.fileno())
        self._partial.record_part(Entry(large.object, checksum), span)
        return checksum

    def _finish(self, large: LargeObject) -> Fetched:
        wanted = large.object
        expected = self._expected_checksum(wanted)
        checksum = large.combined_checksum()
        if expected is not None and (algorithm := algorithm_of(expected)) != DEFAULT_ALGORITHM:
            checksum = checksum_of(large.path, algorithm)
        if expected not in (None, checksum):
            large.discard()
            return self.download(wanted, before=checksum)
        self._partial.move_into_place(large.path, wanted.key)
        return self._fetched(wanted, checksum, is_verified=expected is not None)

    def _fetched(self, wanted: StoredObject, checksum: str, *, is_verified: bool) -> Fetched:
        entry = Entry(wanted, checksum)
        if is_verified and entry.has_md5_etag is False:
            # A header had the MD5, and the ETag is none: with another checksum, the object does not look damaged later.
            entry = Entry(wanted, checksum_of(self._partial.data / wanted.key, DEFAULT_ALGORITHM))
        return Fetched(entry, is_verified=is_verified)

    def _receive(self, wanted: StoredObject, start: int, end: int, file: int) -> tuple[str, ObjectContent]:
        """Write these bytes of an object to a file; return their checksum and what the store reports."""
        until = None if (start, end) == (0, wanted.size) else end
        hasher: Hasher | None = None
        at, retries = start, Retries()
        while hasher is None or at < end:
            before = at
            try:
                content = self._request(wanted, at, until)
                if hasher is None:
                    reported = content
                    algorithm = algorithm_of(content.checksum) if content.checksum else DEFAULT_ALGORITHM
                    hasher = HASHERS[algorithm]()
                for chunk in content.chunks:
                    self._check(wanted, at + len(chunk), end)
                    hasher.update(chunk)
                    at = write_at(file, chunk, at)
                    self.bytes += len(chunk)
                    self.waiting_since = time.monotonic()
                if at < end:
                    raise StoreUnavailable(f"{self._store.uri} object {wanted.key!r} ended after {at} bytes of {end}")
            except StoreUnavailable as error:
                if at > before:
                    retries.restart()
                self._pause(error, retries)
        return format_checksum(algorithm, hasher), reported

    def _request(self, wanted: StoredObject, start: int, end: int | None) -> ObjectContent:
        try:
            return self._store.read(wanted.key, wanted.etag, start, end)
        except ObjectChanged as error:
            raise NotAsListed(wanted, error) from error

    def _check(self, wanted: StoredObject, at: int, end: int) -> None:
        if self._stop.is_set():
            raise Stopped(f"the download of {wanted.key!r} was stopped")
        if at > end:
            raise StoreError(f"{self._store.uri} object {wanted.key!r} has more than the {end} bytes in its listing")

    def _expected_checksum(self, wanted: StoredObject) -> str | None:
        retries = Retries()
        while True:
            try:
                return self._store.checksum(wanted.key, wanted.etag)
            except ObjectChanged as error:
                raise NotAsListed(wanted, error) from error
            except StoreUnavailable as error:
                self._pause(error, retries)

    def _pause(self, error: StoreUnavailable, retries: Retries) -> None:
        """Wait before a retry, or raise the error."""
        if error.is_overloaded:
            self._in_flight.back_off()
        if self._stop.wait(retries.pause_after(error)):
            raise error
