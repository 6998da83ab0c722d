"""The objects of one list, kept current: a list says what is there, a watch what changes."""

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
TURN_SECONDS = 2.0
"""A list and a watch take at least so long, whatever the server does: that is one request a second."""
LIST_AGAIN = ""


@dataclass(frozen=True)
class WatchedObject:
    manifest: Manifest
    is_gone: bool = False
    """It was deleted; this is how it was last seen."""

    @property
    def uid(self) -> str:
        return str(self.manifest["metadata"]["uid"])


class Watched(threading.Thread):
    """Keeps the objects at a path current until it is stopped, or fails.

    Each minute it lists anew: what the watch missed is found, and the connection for other requests stays open.
    """

    def __init__(
        self, api: KubernetesApi, path: str, changed: threading.Condition | None = None, **selector: str
    ) -> None:
        super().__init__(name=f"watch {path}", daemon=True)
        self.changed = changed or threading.Condition()
        """Notified of every change, and of the end; one may serve several."""
        self.has_synced = False
        self.changes = 0
        """So many there have been: as long as it is the same number, they are the same objects."""
        self.error: KubetrainError | None = None
        """What ended it."""
        self._api, self._path, self._selector = api, path, selector
        self._objects: dict[str, WatchedObject] = {}
        self._told_to_stop = threading.Event()
        self._stream: Stream | None = None

    def objects(self) -> list[WatchedObject]:
        """As they are now, with those that are gone as they were last seen; in the order of their appearance."""
        with self.changed:
            return list(self._objects.values())

    def find(self, uid: str) -> WatchedObject | None:
        with self.changed:
            return self._objects.get(uid)

    def stop(self) -> None:
        self._told_to_stop.set()
        if (stream := self._stream) is not None:
            stream.stop()

    def run(self) -> None:
        version = LIST_AGAIN
        try:
            while not self._told_to_stop.is_set():
                began = time.monotonic()
                version = self._watch(version or self._list())
                self._told_to_stop.wait(began + TURN_SECONDS - time.monotonic())
        except KubetrainError as error:
            with self.changed:
                self.error = error
                self.changed.notify_all()

    def _list(self) -> str:
        """Take over all that is there; the version that it was the state of."""
        found = self._api.get(self._path, **self._selector)
        if found is None:
            raise KubernetesError(f"there is no {self._path} in the cluster: check the namespace")
        kind = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
        present = [WatchedObject(kind | item) for item in found["items"]]
        uids = {seen.uid for seen in present}
        with self.changed:
            missing = [known for uid, known in self._objects.items() if uid not in uids and not known.is_gone]
            for seen in present + [replace(known, is_gone=True) for known in missing]:
                self._keep(seen)
            self.has_synced = True
            self.changed.notify_all()
        return str(found["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> str:
        """Follow the changes since a version; the version to go on from, or LIST_AGAIN."""
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
                    if event["type"] == "ERROR":  # mostly 410: the version is forgotten
                        return LIST_AGAIN
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._take(event)
        except (Gone, StreamSilent):
            return LIST_AGAIN
        except StreamCut:
            return version
        finally:
            self._stream = None
        return LIST_AGAIN if time.monotonic() - began > WATCH_SECONDS / 2 else version

    def _take(self, event: Manifest) -> None:
        if event["type"] == "BOOKMARK":
            return
        with self.changed:
            self._keep(WatchedObject(event["object"], is_gone=event["type"] == "DELETED"))
            self.changed.notify_all()

    def _keep(self, seen: WatchedObject) -> None:
        """What is as it was stays the same value: others wait for another."""
        if seen != self._objects.get(seen.uid):
            self._objects[seen.uid] = seen
            self.changes += 1


def _events(chunks: Iterable[bytes]) -> Iterator[Manifest]:
    """One a line; what is left of a line that was cut is no event."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (json.loads(line) for line in lines if line)
