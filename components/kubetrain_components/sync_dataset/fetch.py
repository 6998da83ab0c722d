"""Objects from a store to the files of a version, many at a time, large ones in parts."""

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from math import inf

from kubetrain_components.object_store.store import (
    AccessRefused,
    ObjectChanged,
    ObjectStore,
    StoredObject,
    StoreError,
)
from kubetrain_components.sync_dataset.download import Downloader, Fetched, Stopped
from kubetrain_components.sync_dataset.in_flight import InFlight
from kubetrain_components.sync_dataset.partial_version import LargeObject, PartialVersion, Span

PART_BYTES = 32 << 20
LARGE_BYTES = 2 * PART_BYTES
FAILURES_IN_A_ROW = 8
"""So many without a success between them are the store's fault, and not the objects'."""
SHOWN_FAILURES = 5
LOOK_SECONDS = 0.05
STUCK_SECONDS = 0.5
GRACE_SECONDS = 1.0

Piece = StoredObject | tuple[LargeObject, Span | None]
"""What a worker takes at a time: an object, or a part of a large one; None: its parts are there, but it has no name."""


class Fetch:
    """For one use."""

    def __init__(self, store: ObjectStore, objects: Sequence[StoredObject], partial: PartialVersion, most: int) -> None:
        self._pieces = deque(_pieces(objects, partial))
        self._partial = partial
        self._in_flight = InFlight(most)
        self._stop = threading.Event()
        self._fetched: deque[Fetched] = deque()
        self._failures: list[StoreError] = []
        self._failed_in_a_row = 0
        self._fatal: BaseException | None = None
        workers = range(min(most, len(self._pieces)))
        self._downloaders = [Downloader(store, partial, self._in_flight, self._stop) for _ in workers]
        # Not an executor's threads: a process waits for those, and they for as long as a server keeps them waiting.
        self._threads = [threading.Thread(target=self._work, args=(worker,), daemon=True) for worker in workers]

    @property
    def bytes(self) -> int:
        """How many arrived."""
        return sum(each.bytes for each in self._downloaders)

    def arriving(self) -> Generator[list[Fetched], None, None]:
        """The objects that arrived since the last time, every now and then; close this generator to stop.

        Raises:
            StoreError: at the end, where some could not be had; at once, where none can.
        """
        try:
            for thread in self._threads:
                thread.start()
            while any(thread.is_alive() for thread in self._threads):
                time.sleep(LOOK_SECONDS)
                self._in_flight.stuck(self._silent())
                yield self._arrived()
            yield self._arrived()
            self._raise_failures()
        finally:
            self._end()

    def _work(self, worker: int) -> None:
        try:
            while not self._stop.is_set() and (piece := self._next_piece(worker)) is not None:
                self._take(piece, self._downloaders[worker])
        except BaseException as error:  # noqa: BLE001 - for the thread that waits for it
            self._fatal = self._fatal or error
            self._stop.set()
        self._in_flight.end()

    def _next_piece(self, worker: int) -> Piece | None:
        self._in_flight.wait_for_turn(worker)
        try:
            piece = self._pieces.popleft()
        except IndexError:
            return None
        if isinstance(piece, StoredObject):
            self._in_flight.only_small_left()
        return piece

    def _take(self, piece: Piece, downloader: Downloader) -> None:
        downloader.waits_since = time.monotonic()
        try:
            fetched = (
                downloader.download(piece) if isinstance(piece, StoredObject) else downloader.download_part(*piece)
            )
        except (ObjectChanged, AccessRefused, Stopped):
            raise
        except StoreError as error:
            self._failures.append(error)
            self._failed_in_a_row += 1
            if self._failed_in_a_row == FAILURES_IN_A_ROW:
                raise
        else:
            self._failed_in_a_row = 0
            if fetched is not None:
                self._fetched.append(fetched)
        finally:
            downloader.waits_since = inf

    def _silent(self) -> int:
        """How many workers wait for a server that fell silent."""
        before = time.monotonic() - STUCK_SECONDS
        return sum(each.waits_since < before for each in self._downloaders)

    def _arrived(self) -> list[Fetched]:
        arrived = [self._fetched.popleft() for _ in range(len(self._fetched))]
        self._partial.record_all(each.entry for each in arrived)
        return arrived

    def _raise_failures(self) -> None:
        if self._fatal is not None:
            raise self._fatal
        if len(self._failures) == 1:
            raise self._failures[0]
        if self._failures:
            shown = "; ".join(map(str, self._failures[:SHOWN_FAILURES]))
            raise StoreError(f"{len(self._failures)} objects could not be had: {shown}")

    def _end(self) -> None:
        """Let threads that can end do so, in order to leave nothing of theirs behind."""
        self._stop.set()
        self._in_flight.end()
        deadline = time.monotonic() + GRACE_SECONDS
        for thread in self._threads:
            if thread.ident is not None:  # an interrupt can come before all are started
                thread.join(max(0.0, deadline - time.monotonic()))
        self._arrived()


def _pieces(objects: Sequence[StoredObject], partial: PartialVersion) -> Iterator[Piece]:
    """The parts of large ones first: what begins last should not take longest."""
    for each in objects:
        if each.size >= LARGE_BYTES:
            large = partial.large_object(each, PART_BYTES)
            spans: list[Span | None] = [*large.missing] or [None]
            yield from ((large, span) for span in spans)
    yield from (each for each in objects if each.size < LARGE_BYTES)
