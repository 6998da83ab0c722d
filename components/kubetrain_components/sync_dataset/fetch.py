"""Objects from a store to the files of a version, many at a time."""

import hashlib
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from kubetrain_components.object_store.store import ObjectChanged, ObjectStore, StoredObject, StoreError
from kubetrain_components.sync_dataset.manifest import Entry
from kubetrain_components.sync_dataset.partial_version import PartialVersion

ATTEMPTS_PER_OBJECT = 3
FIRST_BACK_OFF_SECONDS = 0.5
GRACE_SECONDS = 1.0


@dataclass(frozen=True)
class Fetched:
    entry: Entry
    is_verified: bool


def fetch_all(
    store: ObjectStore, objects: Sequence[StoredObject], partial: PartialVersion, concurrency: int
) -> Generator[Fetched, None, None]:
    """Each object when its file has its name; close this iterator to stop.

    Raises:
        StoreError: as soon as one object cannot be had.
    """
    waiting: SimpleQueue[StoredObject] = SimpleQueue()
    ended: SimpleQueue[Fetched | BaseException] = SimpleQueue()
    stop = threading.Event()
    for each in objects:
        waiting.put(each)

    def work() -> None:
        with suppress(Empty):
            while not stop.is_set():
                outcome = _outcome(store, waiting.get_nowait(), partial, stop)
                ended.put(outcome)
                if isinstance(outcome, BaseException):
                    stop.set()

    # Not an executor's threads: a process waits for those, and they for as long as a server keeps them waiting.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(concurrency, len(objects)))]
    try:
        for thread in threads:
            thread.start()
        for _ in objects:
            outcome = ended.get()
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
    finally:
        stop.set()
        _join(threads)


def _join(threads: Sequence[threading.Thread]) -> None:
    """Let threads that can end do so, in order to leave nothing of theirs behind."""
    deadline = time.monotonic() + GRACE_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _outcome(
    store: ObjectStore, wanted: StoredObject, partial: PartialVersion, stop: threading.Event
) -> Fetched | BaseException:
    try:
        return _fetch(store, wanted, partial, stop)
    except BaseException as error:  # noqa: BLE001 - for the thread that waits for it
        return error


def _fetch(store: ObjectStore, wanted: StoredObject, partial: PartialVersion, stop: threading.Event) -> Fetched:
    """Download one object, again where it arrived corrupt or the store failed."""
    attempt = 1
    while True:
        try:
            return _fetch_once(store, wanted, partial, stop)
        except ObjectChanged:
            raise
        except StoreError:
            if attempt == ATTEMPTS_PER_OBJECT or stop.wait(FIRST_BACK_OFF_SECONDS * attempt):
                raise
            attempt += 1


def _fetch_once(store: ObjectStore, wanted: StoredObject, partial: PartialVersion, stop: threading.Event) -> Fetched:
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    content = store.read(wanted.key, wanted.etag)
    with partial.new_file(wanted.key) as file:
        for chunk in content.chunks:
            if stop.is_set():
                raise StoreError("stopped")
            sha256.update(chunk)
            md5.update(chunk)
            file.write(chunk)
        if file.tell() != wanted.size or content.md5 not in (None, md5.hexdigest()):
            raise StoreError(
                f"{store.uri} object {wanted.key!r} arrived corrupt {ATTEMPTS_PER_OBJECT} times: "
                "it is damaged in the store, or something on the way damages it"
            )
    entry = Entry(wanted, f"sha256:{sha256.hexdigest()}")
    partial.record(entry)
    return Fetched(entry, content.md5 is not None)
