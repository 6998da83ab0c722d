"""The log of one pod, read by a thread: every run of its container, in order, without repeated lines."""

import contextlib
import logging
import queue
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.background import BackgroundReader
from kubetrain_components.jobs.kubernetes.errors import (
    BadRequest,
    Forbidden,
    KubernetesError,
    NotFound,
    StreamSilent,
    Unauthorized,
)
from kubetrain_components.jobs.kubernetes.log_position import LogPosition, nanoseconds
from kubetrain_components.jobs.kubernetes.pod_end import has_ended
from kubetrain_components.jobs.kubernetes.watched import Watched, WatchedObject
from kubetrain_components.manifest import Manifest

READ_TIMEOUT_SECONDS = 300.0
"""A stream is reopened if nothing arrives for this long."""
RETRY_SECONDS = 30.0
QUIET_SECONDS = RETRY_SECONDS + 10
PAUSE_SECONDS = 1.0
MAX_LINE_BYTES = 64 << 10
"""Longer lines are passed on in pieces: a progress bar may never end its line."""
NO_LOG = re.compile(rb"unable to retrieve container logs for |failed to try resolving symlinks in path ")
"""Message of a kubelet in place of a log that it has removed, for example after an eviction."""

GAP = "warning: lines may be missing here: the node rotated this log while the launcher could not read it"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """The newest run of a container; `number` counts the runs before it."""

    number: int
    is_over: bool

    @classmethod
    def of(cls, pod: Manifest, container: str) -> Self | None:
        """Return the newest run; None if none has begun."""
        status = pod.get("status", {})
        is_pod_over = has_ended(pod)
        for known in status.get("containerStatuses", ()):
            state, last = known.get("state", {}), known.get("lastState", {})
            if known["name"] == container and (state.keys() & {"running", "terminated"} or "terminated" in last):
                return cls(known["restartCount"], is_over="running" not in state or is_pod_over)
        return None


@dataclass(frozen=True)
class Lines:
    """A batch of lines, and the time up to which the log has been read with them."""

    log: "PodLog"
    texts: list[str]
    until: int


class PodLog(BackgroundReader):
    """A thread that puts the lines of a pod's log into a queue, and blocks while the queue is full.

    The end of a stream does not prove the end of a log, because servers restart. A run counts as read once it is known
    to be over and then was read from the last position to the end of the stream.
    """

    def __init__(
        self,
        api: KubernetesApi,
        pods: Watched,
        pod: Manifest,
        container: str,
        name: str,
        since: int,
        lines: "queue.Queue[Lines]",
    ) -> None:
        super().__init__(f"log of {pod['metadata']['name']}", pods.changed)
        self.pod_name = name
        self.trouble: BaseException | None = None
        """The error for which the log was last not read; it is read again later unless the thread has ended."""
        self.passed_until = max(since, nanoseconds(pod["metadata"]["creationTimestamp"]) or 0)
        """Time up to which all lines have been passed on; updated by PodLogs."""
        self.handed, self.passed = 0, 0
        """Number of batches put into the queue, and of those passed on."""
        self._api, self._pods, self._container, self._lines = api, pods, container, lines
        self._path = api.path("v1", "pods", pod["metadata"]["name"])
        self._uid: str = pod["metadata"]["uid"]
        self._position = LogPosition(since)
        self._runs_read = 0
        self._run_of_last_line: int | None = None
        self._last_trouble = time.monotonic()

    @property
    def is_quiet(self) -> bool:
        """Return True if nothing arrives because the pod writes nothing."""
        return self.handed == self.passed and time.monotonic() - self._last_trouble > QUIET_SECONDS

    @property
    def is_passed_on(self) -> bool:
        return not self.is_alive() and self.handed == self.passed

    def has_read(self, pod: WatchedObject) -> bool:
        """Return True if all lines of the runs that are over have been read."""
        if not self.is_alive():
            return True
        run = Run.of(pod.manifest, self._container)
        return not pod.is_gone and (run is None or not run.is_over or run.number < self._runs_read)

    def _read_all(self) -> None:
        try:
            while not self.must_stop.is_set():
                if self._could_read_runs():
                    return
                self.must_stop.wait(RETRY_SECONDS)
        finally:
            self._position.forget()

    def _could_read_runs(self) -> bool:
        """Return False if that is worth another try. Without permission it is not."""
        try:
            self._read_runs()
        except Exception as error:  # noqa: BLE001 - PodLogs reports it: a log that cannot be read is not a verdict
            self.trouble, self._last_trouble = error, time.monotonic()
            return isinstance(error, Forbidden | Unauthorized)
        return True

    def _read_runs(self) -> None:
        while not self.must_stop.is_set():
            known = self._pods.find(self._uid)
            pod = self._api.get(self._path)  # a watch may be late
            if pod is None or pod["metadata"]["uid"] != self._uid:
                return
            run = Run.of(pod, self._container)
            if run is not None and run.number >= self._runs_read:
                self._read_run(run)
            elif has_ended(pod):
                return
            else:
                self._wait_for_change(known)

    def _read_run(self, run: Run) -> None:
        known = self._pods.find(self._uid)
        if self._is_read(run):
            self._runs_read = run.number + 1
        else:
            self._wait_for_change(known, PAUSE_SECONDS)

    def _is_read(self, run: Run) -> bool:
        if run.number > self._runs_read:
            if not self._read(run.number - 1, previous="true"):  # the rest of the run before this one
                return False
            self._runs_read = run.number
        if run.is_over:
            return self._read(run.number)
        self._read(run.number, follow="true")
        return False

    def _wait_for_change(self, known: WatchedObject | None, seconds: float | None = None) -> None:
        self._pods.changed.wait_for(lambda: self.must_stop.is_set() or self._pods.find(self._uid) is not known, seconds)

    def _read(self, run: int, **query: str) -> bool:
        """Return True if the log was read to its end, or cannot be read."""
        if since := self._position.since_time:
            query["sinceTime"] = since
        self._position.expect_repeats(has_last_line=run == self._run_of_last_line)
        try:
            self._read_stream(run, query)
        except StreamSilent:
            return False
        except (BadRequest, NotFound):
            return True  # the run has not begun, or its log is gone
        except Forbidden:
            raise
        except KubernetesError as error:  # may be the kubelet's; the next GET fails if it is the API server's
            log.info("log of %s: %s", self.pod_name, error)
            self._last_trouble = time.monotonic()
            return False
        finally:
            self._stream = None
        return True

    def _read_stream(self, run: int, query: dict[str, Any]) -> None:
        rest = b""
        selected = {"container": self._container, "timestamps": "true", **query}
        with self._api.stream(
            f"{self._path}/log", read_timeout=READ_TIMEOUT_SECONDS, retry_seconds=RETRY_SECONDS, **selected
        ) as stream:
            self._hold(stream)
            for chunk in stream:
                *lines, rest = (rest + chunk).split(b"\n")
                *pieces, rest = _pieces(rest)
                self._hand_over(run, [piece for line in lines for piece in _pieces(line)] + pieces)
        if rest and "follow" not in query:
            self._hand_over(run, [rest])  # the run is over, so nothing will complete this line

    def _hand_over(self, run: int, received: Sequence[bytes]) -> None:
        lines = [line for line in received if not NO_LOG.match(line)]
        notice = [GAP] if self._position.has_gap(lines) else []
        if new := self._position.new_lines(lines):
            self.handed += 1
            self._run_of_last_line = run
            self._put(Lines(self, [*notice, *map(_text, new)], self._position.time))

    def _put(self, lines: Lines) -> None:
        while not self.must_stop.is_set():
            with contextlib.suppress(queue.Full):
                self._lines.put(lines, timeout=PAUSE_SECONDS)
                return


def _pieces(line: bytes) -> list[bytes]:
    """Split a long line, at the same places each time it is read."""
    if len(line) <= MAX_LINE_BYTES:
        return [line]
    return [line[start : start + MAX_LINE_BYTES] for start in range(0, len(line), MAX_LINE_BYTES)]


def _text(line: bytes) -> str:
    """Decode a line without its timestamp, which pieces of lines and the kubelet's own messages lack."""
    stamp, _, text = line.partition(b" ")
    if stamp[10:11] != b"T":
        text = line
    return text.decode(errors="replace").rstrip("\r")
