"""Keep the objects of one list current: a list request returns their state, then a watch their changes."""

import json
import logging
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from kubetrain_components.changes import Changes
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.background import BackgroundThread
from kubetrain_components.jobs.kubernetes.errors import Gone, KubernetesError, StreamCut, StreamSilent
from kubetrain_components.manifest import Manifest, without_managed_fields
from kubetrain_trainer.errors import KubetrainError

WATCH_SECONDS = 60
GRACE_SECONDS = 10
MIN_ROUND_SECONDS = 2.0
"""Minimum duration of a list and a watch, even if the server ends them at once: one request per second."""
CUT_OFF_SECONDS = 10.0
"""Time without a watch that is usual, for example after a proxy cut it."""
LIST_AGAIN = ""
SMALL_LIST = 100
"""Number of objects up to which a list is requested every minute."""
SECONDS_PER_OBJECT = 0.3

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WatchedObject:
    manifest: Manifest
    is_gone: bool = False
    """The object was deleted; the manifest is the last one seen."""

    @property
    def uid(self) -> str:
        return str(self.manifest["metadata"]["uid"])


class Watched(BackgroundThread):
    """A thread that keeps the objects at a path current until it is stopped or fails.

    It lists them again every minute, or if they are hundreds every few minutes, to find what the watch missed and to
    keep the connection for requests open.
    """

    def __init__(
        self,
        api: KubernetesApi,
        path: str,
        changed: Changes | None = None,
        *,
        keeps_deleted: bool = True,
        **selector: str,
    ) -> None:
        """Keep deleted objects in their last state, or forget them. Several threads may share `changed`."""
        super().__init__(f"watch {path}", changed or Changes())
        self.has_synced = False
        self.changes = 0
        """Number of changes so far: as long as it stays the same, so do the objects."""
        self._api, self._path = api, path
        self._selector: dict[str, Any] = dict(selector)
        self._keeps_deleted = keeps_deleted
        self._objects: dict[str, WatchedObject] = {}
        self._listed_at = -math.inf
        self._trouble_since = math.inf
        self._cut_off_since = math.inf

    @property
    def is_cut_off(self) -> bool:
        """True if the objects may have changed since the watch was lost, because requests fail too."""
        return time.monotonic() - self._cut_off_since > CUT_OFF_SECONDS

    def objects(self) -> list[WatchedObject]:
        """Return all objects in order of appearance, including deleted ones that are kept."""
        with self.changed.lock:
            return list(self._objects.values())

    def find(self, uid: str) -> WatchedObject | None:
        with self.changed.lock:
            return self._objects.get(uid)

    def _do_work(self) -> None:
        version = LIST_AGAIN
        while not self.must_stop.is_set():
            began = time.monotonic()
            version = self._read_round(version)
            self.must_stop.wait(began + MIN_ROUND_SECONDS - time.monotonic())

    def _read_round(self, version: str) -> str:
        """List if necessary, then watch. After an answer without sense, or trouble on this machine, list again."""
        try:
            version = self._watch(version or self._list())
        except KubetrainError:
            raise  # the API client has already retried it
        except Exception as error:
            log.info("watch %s: %r; listing again", self._path, error)
            self._trouble_since = min(self._trouble_since, time.monotonic())
            if time.monotonic() - self._trouble_since > self._api.retry_seconds:
                raise KubernetesError(
                    f"cannot watch {self._path} ({type(error).__name__}: {error}): "
                    "check this machine and what is between it and the API server, then start again"
                ) from error
            return LIST_AGAIN
        self._trouble_since = math.inf
        return version

    def _list(self) -> str:
        """Store the current objects and return the resource version of the list."""
        found = self._api.list_all(self._path, without_managed_fields, **self._selector)
        if found is None:
            raise KubernetesError(f"the cluster has no {self._path}: check the namespace")
        kind = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
        present = [WatchedObject(kind | item) for item in found["items"]]
        uids = {seen.uid for seen in present}
        with self.changed.lock:
            missing = [known for uid, known in self._objects.items() if uid not in uids and not known.is_gone]
            for seen in present + [replace(known, is_gone=True) for known in missing]:
                self._store(seen)
            self.has_synced = True
            self._listed_at = time.monotonic()
            self._cut_off_since = time.monotonic()  # until the watch begins
            self.changed.notify()
        self._trouble_since = math.inf
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
            with self._api.stream(self._path, read_timeout=WATCH_SECONDS + GRACE_SECONDS, **query) as stream:
                self.hold(stream)
                self._cut_off_since = math.inf
                for event in _events(stream):
                    if event["type"] == "ERROR":  # usually 410: the server has forgotten the version
                        return LIST_AGAIN
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._apply(event)
        except (Gone, StreamSilent):
            return LIST_AGAIN
        except StreamCut:
            return version
        finally:
            self.release()
            self._cut_off_since = min(self._cut_off_since, time.monotonic())
        is_whole = time.monotonic() - began > WATCH_SECONDS / 2
        return LIST_AGAIN if is_whole and time.monotonic() - self._listed_at > self._list_interval else version

    @property
    def _list_interval(self) -> float:
        """Time after which to list again: long for many objects, because reading a list of a thousand takes a while."""
        return SECONDS_PER_OBJECT * max(len(self._objects) - SMALL_LIST, 0)

    def _apply(self, event: Manifest) -> None:
        if event["type"] == "BOOKMARK":
            return
        with self.changed.lock:
            manifest = without_managed_fields(event["object"])
            self._store(WatchedObject(manifest, is_gone=event["type"] == "DELETED"))
            self.changed.notify()

    def _store(self, seen: WatchedObject) -> None:
        """Store the object, unless it is unchanged: readers detect a change by identity."""
        if seen == self._objects.get(seen.uid):
            return
        if seen.is_gone and not self._keeps_deleted:
            self._objects.pop(seen.uid, None)
        else:
            self._objects[seen.uid] = seen
        self.changes += 1


def _events(chunks: Iterable[bytes]) -> Iterator[Manifest]:
    """Parse one event per line, without a last line that was cut."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (json.loads(line) for line in lines if line)
