"""The files of interrupted syncs, which are hashed again because a power cut may have damaged them."""

import logging
import os
import threading
from collections.abc import Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path

from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_components.object_store.checksums import HASHERS, algorithm_of, format_checksum
from kubetrain_components.sync_dataset.manifest import Entry
from kubetrain_trainer.durable_files import CHUNK_BYTES, forget_cached

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
BATCH = 64
"""Files that a thread hashes between two messages to the main thread."""


class IntactFiles:
    """Hashes files in parallel; `bytes` grows while they are read, also within large ones."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def of(self, entries: Iterable[Entry], data: Path) -> Generator[list[Entry], None, None]:
        """Yield the intact entries in lists, and empty lists while large files are hashed; close it to stop."""
        left, threads = iter(entries), os.cpu_count() or 1
        pool = ThreadPoolExecutor(threads)
        self._is_over.clear()
        pending: set[Future[list[Entry]]] = set()
        try:
            while True:
                # An interrupt of what has just taken a lock that the threads need would let them wait forever.
                with interrupts_deferred():
                    while len(pending) < 2 * threads and (batch := list(islice(left, BATCH))):
                        pending.add(pool.submit(self._intact, batch, str(data)))
                    done, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
                    intact = [entry for item in done for entry in item.result()]
                if not done and not pending:
                    return
                yield intact
        finally:
            self._is_over.set()
            pool.shutdown(cancel_futures=True)

    def _intact(self, entries: list[Entry], data: str) -> list[Entry]:
        return [entry for entry in entries if self._is_intact(entry, data)]

    def _is_intact(self, entry: Entry, data: str) -> bool:
        try:
            return entry.has_right_size(data) and self._hash(entry, data) == entry.checksum
        except OSError as error:
            log.warning("downloading %s again: %s", entry.object.key, error)
            return False

    def _hash(self, entry: Entry, data: str) -> str:
        algorithm, buffer = algorithm_of(entry.checksum), memoryview(bytearray(min(entry.object.size, CHUNK_BYTES)))
        hasher = HASHERS[algorithm]()
        with Path(data, entry.object.key).open("rb", buffering=0) as file:
            forget_cached(file.fileno())
            while not self._is_over.is_set() and (count := file.readinto(buffer)):
                hasher.update(buffer[:count])
                with self._lock:
                    self.bytes += count
        return format_checksum(algorithm, hasher)
