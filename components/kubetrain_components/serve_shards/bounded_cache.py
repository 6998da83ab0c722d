"""Shards in a folder of limited size. Those that were announced first are deleted first if others need the space."""

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from kubetrain_trainer.data.shard_cache import StoredShard
from kubetrain_trainer.errors import KubetrainError

FETCHES = 8
"""Number of shards that are fetched ahead of their use at the same time."""
Fetch = Callable[[StoredShard, Path], None]


@dataclass(eq=False)
class Entry:
    shard: StoredShard
    fetched: "Future[None]" = field(default_factory=Future)
    readers: int = 0

    @property
    def may_go(self) -> bool:
        return self.fetched.done() and not self.readers


class BoundedCache:
    def __init__(self, folder: Path, limit: int, fetch: Fetch) -> None:
        shutil.rmtree(folder, ignore_errors=True)  # a crash of the node may have damaged what is there
        folder.mkdir(parents=True)
        self.fetched = 0
        """Number of shards that were fetched."""
        self.waits = 0
        """How often a shard was not there when it was needed."""
        self._folder, self._limit, self._fetch = folder, limit, fetch
        self._changed = threading.Condition()
        self._entries: dict[str, Entry] = {}
        """Shards that are there or will be, by file name, in the order of their last announcement."""
        self._used = 0
        self._is_closed = False
        self._announced = SimpleQueue[Entry | None]()
        for _ in range(FETCHES):
            # Daemons, because a process would wait for an executor's threads even if a server hangs.
            threading.Thread(target=self._fetch_ahead, daemon=True).start()

    def close(self) -> None:
        """Fetch nothing more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for _ in range(FETCHES):
            self._announced.put(None)

    def announce(self, shards: Iterable[StoredShard]) -> None:
        """Fetch these shards ahead of their use, in this order."""
        with self._changed:
            for shard in shards:
                if (entry := self._entries.pop(shard.file_name, None)) is None:
                    self._announced.put(entry := Entry(shard))
                self._entries[shard.file_name] = entry

    @contextlib.contextmanager
    def held(self, shard: StoredShard) -> Iterator[None]:
        """Fetch the shard if it is not there, and keep it while the block runs.

        Raises:
            KubetrainError: if it cannot be fetched.
        """
        entry, is_mine = self._hold(shard)
        try:
            if is_mine:
                self._fill(entry)
            entry.fetched.result()
            yield
        finally:
            with self._changed:
                entry.readers -= 1
                self._changed.notify_all()

    def _hold(self, shard: StoredShard) -> tuple[Entry, bool]:
        """Return the shard's entry, and whether this thread has to fetch it: it does not queue behind others."""
        with self._changed:
            entry = self._entries.get(shard.file_name)
            if entry and entry.fetched.done() and not self._path(shard).exists():  # another program deleted the file
                self._free(shard.size)
                entry = None
            self.waits += entry is None or not entry.fetched.done()
            is_mine = entry is None or entry.fetched.cancel()
            if entry is None or is_mine:
                entry = self._entries[shard.file_name] = Entry(shard)
                entry.fetched.set_running_or_notify_cancel()  # from here on, no other reader can cancel it
            entry.readers += 1
            return entry, is_mine

    def _fetch_ahead(self) -> None:
        while (entry := self._announced.get()) and not self._is_closed:
            if entry.fetched.set_running_or_notify_cancel():
                self._fill(entry)

    def _fill(self, entry: Entry) -> None:
        try:
            self._make_room(entry.shard.size)
            try:
                self._fetch(entry.shard, self._path(entry.shard))
            except BaseException:
                self._free(entry.shard.size)
                raise
        except Exception as error:  # noqa: BLE001 - raised where the shard is needed
            with self._changed:
                del self._entries[entry.shard.file_name]
            entry.fetched.set_exception(error)
        else:
            self.fetched += 1
            entry.fetched.set_result(None)
        with self._changed:
            self._changed.notify_all()

    def _make_room(self, size: int) -> None:
        if size > self._limit:
            raise KubetrainError(
                f"a shard of {size:,} bytes does not fit its part of the cache, {self._limit:,} bytes: raise "
                "data.cache_gb"
            )
        with self._changed:
            while self._used + size > self._limit:
                if self._is_closed:
                    raise KubetrainError("the cache is closed")
                if oldest := next((entry for entry in self._entries.values() if entry.may_go), None):
                    self._path(oldest.shard).unlink(missing_ok=True)
                    del self._entries[oldest.shard.file_name]
                    self._used -= oldest.shard.size
                else:
                    self._changed.wait()
            self._used += size

    def _free(self, size: int) -> None:
        with self._changed:
            self._used -= size

    def _path(self, shard: StoredShard) -> Path:
        return self._folder / shard.file_name
