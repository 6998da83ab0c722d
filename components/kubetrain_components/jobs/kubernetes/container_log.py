"""The log of one pod's container across its runs, read by one thread at a time: lines in order, none repeated."""

import contextlib
import queue
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from kubetrain_components.jobs.job_state import JobHandle
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.background import BackgroundThread
from kubetrain_components.jobs.kubernetes.log_position import LogPosition, nanoseconds
from kubetrain_components.jobs.kubernetes.pod_end import container_status, has_ended
from kubetrain_components.jobs.kubernetes.request import Stream
from kubetrain_components.jobs.kubernetes.state import pods_by_replica
from kubetrain_components.jobs.verdict import KEPT_LINES
from kubetrain_components.manifest import Manifest

REQUEST_SECONDS = 10.0
RUNS: dict[str, dict[str, str]] = {"state": {}, "lastState": {"previous": "true"}}
"""Fields of a container's status that may have an end, with the query for the log of that run."""

PUT_SECONDS = 1.0
MAX_LINE_BYTES = 64 << 10
"""Longer lines are passed on in pieces: a progress bar may never end its line."""
NO_LOG = re.compile(rb"unable to retrieve container logs for |failed to try resolving symlinks in path ")
"""Message of a kubelet in place of a log that it has removed, for example after an eviction."""

GAP = "warning: lines may be missing here: the node rotated this log while the launcher could not read it"


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

    log: "ContainerLog"
    texts: list[str]
    until: int


class ContainerLog:
    """Puts the lines of a log into a queue, and blocks while the queue is full."""

    def __init__(
        self,
        api: KubernetesApi,
        pod: Manifest,
        container: str,
        name: str,
        since: int,
        lines: "queue.Queue[Lines]",
    ) -> None:
        self.api, self.container, self.pod_name = api, container, name
        self.uid: str = pod["metadata"]["uid"]
        self.path = api.path("v1", "pods", pod["metadata"]["name"])
        self.passed_until = max(since, nanoseconds(pod["metadata"]["creationTimestamp"]) or 0)
        """Time up to which all lines have been passed on; updated by PodLogs."""
        self.handed, self.passed = 0, 0
        """Number of batches put into the queue, and of those passed on."""
        self.runs_read = 0
        """Number of runs that have been read to their end."""
        self.last_trouble = time.monotonic()
        self._lines = lines
        self._position = LogPosition(since)
        self._run_of_last_line: int | None = None

    def has_read(self, pod: Manifest) -> bool:
        """Return True if all lines of the runs that are over have been read."""
        run = Run.of(pod, self.container)
        return run is None or not run.is_over or run.number < self.runs_read

    @contextlib.contextmanager
    def opened(self, reader: BackgroundThread, run: int, **query: Any) -> Iterator[Stream]:
        """Request the log of a run from the last position."""
        if since := self._position.since_time:
            query["sinceTime"] = since
        self._position.expect_repeats(has_last_line=run == self._run_of_last_line)
        selected = {"container": self.container, "timestamps": "true", **query}
        try:
            with self.api.stream(f"{self.path}/log", **selected) as stream:
                reader.hold(stream)
                yield stream
        finally:
            reader.release()

    def read(self, reader: BackgroundThread, run: int, stream: Stream, *, is_complete: bool) -> None:
        """Read the stream to its end.

        Args:
            is_complete: Nothing will complete a last line without end.
        """
        rest = b""
        for chunk in stream:
            *lines, rest = (rest + chunk).split(b"\n")
            *pieces, rest = _pieces(rest)
            self._hand_over(reader, run, [piece for line in lines for piece in _pieces(line)] + pieces)
        if rest and is_complete:
            self._hand_over(reader, run, [rest])

    def forget(self) -> None:
        """Free memory once the log is over."""
        self._position.forget()

    def _hand_over(self, reader: BackgroundThread, run: int, received: Sequence[bytes]) -> None:
        lines = [line for line in received if not NO_LOG.match(line)]
        notice = [GAP] if self._position.has_gap(lines) else []
        if new := self._position.new_lines(lines):
            self.handed += 1
            self._run_of_last_line = run
            self._put(reader, Lines(self, [*notice, *map(_text, new)], self._position.time))

    def _put(self, reader: BackgroundThread, lines: Lines) -> None:
        while not reader.must_stop.is_set():
            with contextlib.suppress(queue.Full):
                self._lines.put(lines, timeout=PUT_SECONDS)
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


def read_last_lines(api: KubernetesApi, job: JobHandle, pod: str) -> list[str]:
    """Return the last lines of the newest run of a replica that has ended; none if none has.

    They are requested again, because the stream of its log may be minutes behind.
    """
    traits, path = job.kind.traits, api.path("v1", "pods")
    found = api.get(path, retry_seconds=REQUEST_SECONDS, labelSelector=f"{traits.job_name_label}={job.name}") or {}
    for item in reversed(pods_by_replica(found.get("items") or []).get(pod, [])):
        status = container_status(traits.container, item)
        for query in (RUNS[field] for field in RUNS if "terminated" in (status.get(field) or {})):
            return _read(api, f"{path}/{item['metadata']['name']}/log", container=traits.container, **query)
    return []


def _read(api: KubernetesApi, path: str, **query: Any) -> list[str]:
    limits = {"read_timeout": REQUEST_SECONDS, "retry_seconds": REQUEST_SECONDS}
    with api.stream(path, **limits, tailLines=KEPT_LINES, **query) as stream:
        lines = b"".join(stream).splitlines()
    return [line.decode(errors="replace") for line in lines if not NO_LOG.match(line)]
