"""Keep the objects of one list current: a list request returns their state, then a watch their changes."""

import json
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from kubetrain_components.jobs.kubernetes.api import KubernetesApi, Stream
from kubetrain_components.jobs.kubernetes.errors import Gone, KubernetesError, StreamCut, StreamSilent
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.errors import KubetrainError

WATCH_SECONDS = 60
GRACE_SECONDS = 10
MIN_ROUND_SECONDS = 2.0
"""Minimum duration of a list and a watch, even if the server ends them at once: one request per second."""
LIST_AGAIN = ""


@dataclass(frozen=True)
class WatchedObject:
    manifest: Manifest
    is_gone: bool = False
    """The object was deleted; the manifest is the last one seen."""

    @property
    def uid(self) -> str:
        return str(self.manifest["metadata"]["uid"])


class Watched(threading.Thread):
    """A thread that keeps the objects at a path current until it is stopped or fails.

    It lists them again every minute, to find what the watch missed and to keep the connection for requests open.
    """

    def __init__(
        self, api: KubernetesApi, path: str, changed: threading.Condition | None = None, **selector: str
    ) -> None:
        super().__init__(name=f"watch {path}", daemon=True)
        self.changed = changed or threading.Condition()
        """Notified of every change and of a failure; several threads may share one."""
        self.has_synced = False
        self.changes = 0
        """Number of changes so far: as long as it stays the same, so do the objects."""
        self.error: KubetrainError | None = None
        """The error that ended the thread."""
        self._api, self._path, self._selector = api, path, selector
        self._objects: dict[str, WatchedObject] = {}
        self._must_stop = threading.Event()
        self._stream: Stream | None = None

    def objects(self) -> list[WatchedObject]:
        """Return all objects in order of appearance, including deleted ones."""
        with self.changed:
            return list(self._objects.values())

    def find(self, uid: str) -> WatchedObject | None:
        with self.changed:
            return self._objects.get(uid)

    def stop(self) -> None:
        self._must_stop.set()
        if (stream := self._stream) is not None:
            stream.stop()

    def run(self) -> None:
        version = LIST_AGAIN
        try:
            while not self._must_stop.is_set():
                began = time.monotonic()
                version = self._watch(version or self._list())
                self._must_stop.wait(began + MIN_ROUND_SECONDS - time.monotonic())
        except KubetrainError as error:
            with self.changed:
                self.error = error
                self.changed.notify_all()

    def _list(self) -> str:
        """Store the current objects and return the resource version of the list."""
        found = self._api.get(self._path, **self._selector)
        if found is None:
            raise KubernetesError(f"the cluster has no {self._path}: check the namespace")
        kind = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
        present = [WatchedObject(kind | item) for item in found["items"]]
        uids = {seen.uid for seen in present}
        with self.changed:
            missing = [known for uid, known in self._objects.items() if uid not in uids and not known.is_gone]
            for seen in present + [replace(known, is_gone=True) for known in missing]:
                self._store(seen)
            self.has_synced = True
            self.changed.notify_all()
        return str(found["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> str:
        """Follow the changes after a version; return the version to continue from, or LIST_AGAIN."""
        began = time.monotonic()
        query: dict[str, Any] = {
            **self._selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": WATCH_SECONDS,
        }
        try:
            with self._api.stream(self._path, read_timeout=WATCH_SECONDS + GRACE_SECONDS, **query) as self._stream:
                for event in _events(self._stream):
                    if event["type"] == "ERROR":  # usually 410: the server has forgotten the version
                        return LIST_AGAIN
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._apply(event)
        except (Gone, StreamSilent):
            return LIST_AGAIN
        except StreamCut:
            return version
        finally:
            self._stream = None
        return LIST_AGAIN if time.monotonic() - began > WATCH_SECONDS / 2 else version

    def _apply(self, event: Manifest) -> None:
        if event["type"] == "BOOKMARK":
            return
        with self.changed:
            self._store(WatchedObject(event["object"], is_gone=event["type"] == "DELETED"))
            self.changed.notify_all()

    def _store(self, seen: WatchedObject) -> None:
        """Store the object, unless it is unchanged: readers detect a change by identity."""
        if seen != self._objects.get(seen.uid):
            self._objects[seen.uid] = seen
            self.changes += 1


def _events(chunks: Iterable[bytes]) -> Iterator[Manifest]:
    """Parse one event per line, without a last line that was cut."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (json.loads(line) for line in lines if line)
