"""The download of many objects in parallel, large ones in parts."""

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from math import inf

from kubetrain_components.object_store.store import AccessRefused, ObjectChanged, ObjectStore, StoredObject, StoreError
from kubetrain_components.sync_dataset.download import Downloader, Fetched, Stopped
from kubetrain_components.sync_dataset.in_flight import MIN_REQUESTS, MIN_REQUESTS_FOR_SMALL_OBJECTS, InFlight
from kubetrain_components.sync_dataset.large_object import LargeObject, Span
from kubetrain_components.sync_dataset.partial_version import PartialVersion
from kubetrain_components.sync_dataset.plan import Objects

PART_BYTES = 32 << 20
LARGE_BYTES = 2 * PART_BYTES
MAX_REQUESTS = 64
MAX_FAILURES_IN_A_ROW = 8
"""After this many failures without a success, the store is to blame, not the objects."""
SHOWN_FAILURES = 5
POLL_SECONDS = 0.05
STUCK_SECONDS = 0.5
STOP_TIMEOUT_SECONDS = 1.0

Piece = StoredObject | tuple[LargeObject, Span]
"""The work that a thread takes: an object, or a part of a large one."""


class Fetch:
    """One download of many objects."""

    def __init__(self, store: ObjectStore, objects: Objects, partial: PartialVersion, limit: int | None = None) -> None:
        """
        Args:
            limit: Number of parallel requests; by default, the number adapts to the store.
        """
        most = limit or MAX_REQUESTS
        self._large = [partial.large_object(item, PART_BYTES) for item in objects if item.size >= LARGE_BYTES]
        self.needed_bytes = sum(item.size for item in objects) - sum(item.allocated_bytes for item in self._large)
        """Space on the volume that the download needs."""
        self._small = (item for item in objects if item.size < LARGE_BYTES)
        self._pieces: Iterator[Piece] = iter(())
        self._taking = threading.Lock()
        self._partial = partial
        fewest = MIN_REQUESTS if self._large else MIN_REQUESTS_FOR_SMALL_OBJECTS
        self._in_flight = InFlight(most, fewest, is_fixed=limit is not None)
        self._stop = threading.Event()
        self._fetched: deque[Fetched] = deque()
        self._failures: list[StoreError] = []
        self._failed_in_a_row = 0
        self._fatal: BaseException | None = None
        workers = range(most if self._large else min(most, len(objects)))
        self._downloaders = [Downloader(store, partial, self._in_flight, self._stop) for _ in workers]
        # Daemon threads, because a process would wait for an executor's threads even if a server hangs.
        self._threads = [threading.Thread(target=self._work, args=(worker,), daemon=True) for worker in workers]

    @property
    def bytes(self) -> int:
        """The number of bytes that arrived."""
        return sum(downloader.bytes for downloader in self._downloaders)

    def arriving(self) -> Generator[list[Fetched], None, None]:
        """Start, and yield the objects that arrived in each interval; close this generator to stop.

        Raises:
            StoreError: at the end if some objects failed, or immediately if none can be downloaded.
        """
        try:
            self._pieces = self._plan_pieces()
            for thread in self._threads:
                thread.start()
            while any(thread.is_alive() for thread in self._threads):
                time.sleep(POLL_SECONDS)
                self._in_flight.set_stuck(self._count_stuck())
                self._in_flight.steer(
                    time.monotonic(), sum(downloader.completed for downloader in self._downloaders), self.bytes
                )
                yield self._arrived()
            yield self._arrived()
            self._raise_failures()
        finally:
            self._stop_threads()

    def _plan_pieces(self) -> Iterator[Piece]:
        """Take large objects first, because the work that starts last should not take the longest."""
        for large in self._large:
            large.make_file()
            yield from ((large, span) for span in large.spans)
        yield from self._small

    def _work(self, worker: int) -> None:
        try:
            while not self._stop.is_set() and (piece := self._next_piece(worker)) is not None:
                self._download(piece, self._downloaders[worker])
        except BaseException as error:  # noqa: BLE001 - raised in the main thread
            self._fatal = self._fatal or error
            self._stop.set()
        self._in_flight.end()

    def _next_piece(self, worker: int) -> Piece | None:
        self._in_flight.wait_for_turn(worker)
        with self._taking:
            piece = next(self._pieces, None)
        if isinstance(piece, StoredObject):
            self._in_flight.lower_minimum()
        return piece

    def _download(self, piece: Piece, downloader: Downloader) -> None:
        downloader.waiting_since = time.monotonic()
        try:
            fetched = (
                downloader.download(piece) if isinstance(piece, StoredObject) else downloader.download_part(*piece)
            )
        except (ObjectChanged, AccessRefused, Stopped):
            raise
        except StoreError as error:
            self._failures.append(error)
            self._failed_in_a_row += 1
            if self._failed_in_a_row >= MAX_FAILURES_IN_A_ROW:
                raise
        else:
            self._failed_in_a_row = 0
            downloader.completed += 1
            if fetched is not None:
                self._fetched.append(fetched)
        finally:
            downloader.waiting_since = inf

    def _count_stuck(self) -> int:
        """Return the number of workers whose server sends nothing."""
        before = time.monotonic() - STUCK_SECONDS
        return sum(downloader.waiting_since < before for downloader in self._downloaders)

    def _arrived(self) -> list[Fetched]:
        arrived = [self._fetched.popleft() for _ in range(len(self._fetched))]
        self._partial.record_all(item.entry for item in arrived)
        return arrived

    def _raise_failures(self) -> None:
        if self._fatal is not None:
            raise self._fatal
        if len(self._failures) == 1:
            raise self._failures[0]
        if self._failures:
            shown = "; ".join(map(str, self._failures[:SHOWN_FAILURES]))
            raise StoreError(f"{len(self._failures)} objects could not be downloaded: {shown}")

    def _stop_threads(self) -> None:
        """Let the threads that are not stuck end, so that they delete their unfinished files."""
        self._stop.set()
        self._in_flight.end()
        deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
        for thread in self._threads:
            if thread.ident is not None:  # an interrupt may come before all are started
                thread.join(max(0.0, deadline - time.monotonic()))
        self._arrived()
