"""One object from a store to its file: read on where it was cut, and compared with what the store vouches for."""

import os
import random
import threading
import time
from dataclasses import dataclass
from math import inf

from kubetrain_components.object_store.checksums import HASHERS, OWN, Hasher, algorithm_of, checksum_of, written
from kubetrain_components.object_store.store import (
    ObjectContent,
    ObjectStore,
    StoredObject,
    StoreError,
    StoreUnavailable,
)
from kubetrain_components.sync_dataset.in_flight import InFlight
from kubetrain_components.sync_dataset.manifest import Entry
from kubetrain_components.sync_dataset.partial_version import LargeObject, PartialVersion, Span

ATTEMPTS_WITHOUT_PROGRESS = 6
ATTEMPTS_AT_BUSY_STORES = 12
ATTEMPTS_TO_ARRIVE_INTACT = 3
FIRST_BACK_OFF_SECONDS = 0.25
MAX_BACK_OFF_SECONDS = 10.0


class Stopped(StoreError):
    """The sync ended before this object did."""


@dataclass(frozen=True, slots=True)
class Fetched:
    entry: Entry
    is_verified: bool
    """The store vouched for the checksum."""


class Downloader:
    """For one thread."""

    def __init__(self, store: ObjectStore, partial: PartialVersion, in_flight: InFlight, stop: threading.Event) -> None:
        self.bytes = 0
        """How many arrived."""
        self.waits_since = inf
        """When something last arrived, or was asked for; never, where nothing is to arrive."""
        self._store = store
        self._partial = partial
        self._in_flight = in_flight
        self._stop = stop

    def download(self, wanted: StoredObject) -> Fetched:
        """The whole object, again where it arrived corrupt.

        Raises:
            StoreError: where the store does not give it, or not intact.
        """
        for _ in range(ATTEMPTS_TO_ARRIVE_INTACT):
            with self._partial.new_file(wanted.key) as file:
                checksum, vouched = self._receive(wanted, 0, wanted.size, file.descriptor)
                if vouched in (None, checksum):
                    file.is_good = True
            if file.is_good:
                return Fetched(Entry(wanted, checksum), is_verified=vouched is not None)
        raise StoreError(
            f"{self._store.uri} object {wanted.key!r} arrived corrupt {ATTEMPTS_TO_ARRIVE_INTACT} times: "
            "it is damaged in the store, or something on the way damages it"
        )

    def download_part(self, large: LargeObject, span: Span | None) -> Fetched | None:
        """Bring a part of an object; with the last one to arrive, the object is there."""
        if span is None:
            return self._finish(large)
        start, end = span
        with large.path.open("r+b", buffering=0) as file:
            checksum, _ = self._receive(large.object, start, end, file.fileno())
        self._partial.record_part(Entry(large.object, checksum), span)
        return self._finish(large) if large.is_whole_with(span, checksum) else None

    def _finish(self, large: LargeObject) -> Fetched:
        wanted = large.object
        vouched = self._vouched(wanted)
        checksum = large.own_checksum()
        if vouched is not None and (algorithm := algorithm_of(vouched)) != OWN:
            checksum = checksum_of(large.path, algorithm)
        if vouched not in (None, checksum):
            large.discard()
            return self.download(wanted)
        self._partial.name(large.path, wanted.key)
        return Fetched(Entry(wanted, checksum), is_verified=vouched is not None)

    def _receive(self, wanted: StoredObject, start: int, end: int, file: int) -> tuple[str, str | None]:
        """Bring these bytes to their place; what they hash to, and what the store says that they must."""
        until = None if (start, end) == (0, wanted.size) else end
        hasher: Hasher | None = None
        at, failures = start, 0
        while hasher is None or at < end:
            before = at
            try:
                content = self._ask(wanted, at, until)
                if hasher is None:
                    vouched = content.checksum
                    algorithm = algorithm_of(vouched) if vouched else OWN
                    hasher = HASHERS[algorithm]()
                for chunk in content.chunks:
                    self._check(wanted, at + len(chunk), end)
                    hasher.update(chunk)
                    at = write_at(file, chunk, at)
                    self.bytes += len(chunk)
                    self.waits_since = time.monotonic()
                if at < end:
                    raise StoreUnavailable(f"{self._store.uri} object {wanted.key!r} ended after {at} bytes of {end}")
            except StoreUnavailable as error:
                failures = 1 if at > before else failures + 1
                self._pause(error, failures)
        return written(algorithm, hasher), vouched

    def _ask(self, wanted: StoredObject, start: int, end: int | None) -> ObjectContent:
        asked = time.perf_counter()
        content = self._store.read(wanted.key, wanted.etag, start, end)
        self._in_flight.answered(time.perf_counter() - asked)
        return content

    def _check(self, wanted: StoredObject, at: int, end: int) -> None:
        if self._stop.is_set():
            raise Stopped(f"{wanted.key!r} was stopped")
        if at > end:
            raise StoreError(f"{self._store.uri} object {wanted.key!r} has more bytes than its listing says: {end}")

    def _vouched(self, wanted: StoredObject) -> str | None:
        failures = 0
        while True:
            try:
                return self._store.checksum(wanted.key, wanted.etag)
            except StoreUnavailable as error:
                failures += 1
                self._pause(error, failures)

    def _pause(self, error: StoreUnavailable, failures: int) -> None:
        """Wait before asking again, longer each time; raise the error when that is in vain."""
        most = ATTEMPTS_WITHOUT_PROGRESS
        if error.is_overloaded:
            most = ATTEMPTS_AT_BUSY_STORES
            self._in_flight.overloaded()
        seconds = min(MAX_BACK_OFF_SECONDS, FIRST_BACK_OFF_SECONDS * 2 ** (failures - 1))
        if failures >= most or self._stop.wait(random.uniform(seconds / 2, seconds)):
            raise error


def write_at(file: int, chunk: bytes | memoryview, at: int) -> int:
    """Where the next chunk goes."""
    left = memoryview(chunk)
    while left:
        count = os.pwrite(file, left, at)
        at, left = at + count, left[count:]
    return at
