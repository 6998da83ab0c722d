"""The logs of many pods, read in turn by a few threads: at once if a pod failed, restarted or ended."""

import math
import queue
import random
import time
from collections.abc import Iterable
from enum import IntEnum
from itertools import count
from typing import Any, NamedTuple

from kubetrain_components.changes import Changes
from kubetrain_components.jobs.kubernetes.background import BackgroundThread
from kubetrain_components.jobs.kubernetes.container_log import ContainerLog, Limits, Run
from kubetrain_components.jobs.kubernetes.errors import BadRequest, Forbidden, NotFound, Unauthorized
from kubetrain_components.jobs.kubernetes.pod_end import container_status, has_ended, status_of
from kubetrain_components.jobs.kubernetes.watched import WatchedObject
from kubetrain_components.manifest import Manifest

MAX_READERS = 8
READS_PER_SECOND = 4.0
"""Limits what the logs of pods that run undisturbed cost."""
MIN_INTERVAL_SECONDS = 20.0
TAIL_LINES = 200
"""Lines that one request reads: a pod that writes more in the meantime is not read completely."""
RETRY_SECONDS, URGENT_RETRIES = 1.0, 5
LIMITS = Limits(retry_seconds=0.0, read_timeout=10.0)
"""A node that does not answer must not keep the readers busy."""
REPORT_SECONDS = 30.0


class Urgency(IntEnum):
    FAILED = 0
    CHANGED = 1
    ENDED = 2
    NONE = 3


class Moment(NamedTuple):
    """State of a pod whose change makes its log worth reading at once."""

    run: Run | None
    is_terminating: bool

    @classmethod
    def of(cls, pod: Manifest, container: str) -> "Moment":
        return cls(Run.of(pod, container), "deletionTimestamp" in pod["metadata"])


class SampledLog:
    def __init__(self, log: ContainerLog) -> None:
        self.log = log
        self.pod: WatchedObject | None = None
        self.due = math.inf
        self.error: Exception | None = None
        """The error for which the log was last not read."""
        self.is_in_hand = False
        self.urgency = Urgency.NONE
        self._retries = URGENT_RETRIES
        self.order = ""
        """Time when the container ended: the first that failed is the cause."""
        self._moment = Moment(None, is_terminating=False)

    def update(self, pod: WatchedObject, interval: float) -> None:
        """Take note of a new state of the pod, and of when its log must be read."""
        if pod is self.pod:
            return
        before, self._moment = self._moment, Moment.of(pod.manifest, self.log.container)
        self.pod = pod
        if pod.is_gone:
            self.due = math.inf
        elif self._moment != before:
            self._plan(before, pod.manifest, interval)

    def _plan(self, before: Moment, pod: Manifest, interval: float) -> None:
        run = self._moment.run
        if before.run is None and run == Run(0, is_over=False):
            self.due = time.monotonic() + random.uniform(0, interval)  # pods start together
            return
        ended = (container_status(self.log.container, pod).get("state") or {}).get("terminated") or {}
        has_failed = ended.get("exitCode") or status_of(pod).get("phase") == "Failed"
        is_over = run is not None and run.is_over
        self.urgency = Urgency.FAILED if has_failed else Urgency.ENDED if is_over else Urgency.CHANGED
        self.order = ended.get("finishedAt") or ""
        self.due, self._retries = 0.0, URGENT_RETRIES

    def read(self, reader: BackgroundThread) -> None:
        assert self.pod is not None
        try:
            self._read_runs(reader, Run.of(self.pod.manifest, self.log.container))
            self.error = None
        except Exception as error:  # noqa: BLE001 - reported for all logs together; no log is a verdict
            self.error = error

    def _read_runs(self, reader: BackgroundThread, run: Run | None) -> None:
        if run is None:
            return
        if run.number > self.log.runs_read:
            self._read(reader, run.number - 1, is_over=True, previous="true")
            self.log.runs_read = run.number
        if run.number == self.log.runs_read:
            self._read(reader, run.number, is_over=run.is_over)
            self.log.runs_read += run.is_over

    def _read(self, reader: BackgroundThread, run: int, *, is_over: bool, **query: Any) -> None:
        try:
            with self.log.opened(reader, run, LIMITS, tailLines=TAIL_LINES, **query) as stream:
                self.log.read(reader, run, stream, is_complete=is_over)
        except (BadRequest, NotFound):  # the run has not begun, or its log is gone
            if not is_over:
                raise

    def plan_next(self, interval: float) -> None:
        """Plan the next read after one, unless the pod has changed since that one began."""
        if self.due < math.inf or (self._is_over and self.is_read):
            return
        if self.error is not None and self.urgency is not Urgency.NONE and self._retries > 0:
            self._retries, self.due = self._retries - 1, time.monotonic() + RETRY_SECONDS
        else:
            self.urgency, self.due = Urgency.NONE, time.monotonic() + interval

    @property
    def is_read(self) -> bool:
        """True if all lines of the runs that are over have been read."""
        is_denied = isinstance(self.error, Forbidden | Unauthorized)
        return self.pod is None or self.pod.is_gone or is_denied or self.log.has_read(self.pod.manifest)

    @property
    def _is_over(self) -> bool:
        return self.pod is None or self.pod.is_gone or has_ended(self.pod.manifest)


Work = tuple[Urgency, str, int, SampledLog | None]
"""A log to read, in order of its urgency; None: the end."""


class SampledLogs:
    def __init__(self, changed: Changes) -> None:
        self._logs: dict[str, SampledLog] = {}
        self._readers: list[_Reader] = []
        self._changed = changed
        self._work: queue.PriorityQueue[Work] = queue.PriorityQueue()
        self._done: queue.SimpleQueue[SampledLog] = queue.SimpleQueue()
        self._numbers = count()
        self._failed = self._reported = 0
        self._report_at = time.monotonic() + REPORT_SECONDS

    def add(self, log: ContainerLog) -> None:
        self._logs[log.uid] = SampledLog(log)
        if len(self._readers) < min(MAX_READERS, len(self._logs)):
            self._readers.append(_Reader(self._work, self._done, self._changed))
            self._readers[-1].start()

    def remove(self, log: ContainerLog) -> bool:
        """Leave this log to another reader; return False while one of ours reads it."""
        if (known := self._logs.get(log.uid)) is None or known.is_in_hand:
            return False
        del self._logs[log.uid]
        return True

    def update(self, pods: Iterable[WatchedObject]) -> None:
        for pod in pods:
            if (known := self._logs.get(pod.uid)) is not None:
                known.update(pod, self._interval)

    def hand_out(self) -> None:
        """Give the readers the logs that are due."""
        while not self._done.empty():
            self._take_back(self._done.get())
        now = time.monotonic()
        for log in self._logs.values():
            if log.due <= now and not log.is_in_hand:
                log.due, log.is_in_hand = math.inf, True
                self._work.put((log.urgency, log.order, next(self._numbers), log))

    def have_read(self, pod: WatchedObject) -> bool:
        """Return True if all lines of the runs that are over have been read, or the log is not one of ours."""
        known = self._logs.get(pod.uid)
        return known is None or (known.pod is pod and known.is_read and not known.is_in_hand)

    def trouble(self) -> tuple[str, str] | None:
        """Return a pod, and what to say about all logs that cannot be read, once it is known how many these are."""
        if time.monotonic() < self._report_at:
            return None
        self._report_at = time.monotonic() + REPORT_SECONDS
        failed = [log for log in self._logs.values() if log.error is not None]
        before, self._failed = self._failed, len(failed)
        if len(failed) > before or len(failed) <= 2 * self._reported:
            return None
        self._reported = len(failed)
        first = failed[0]
        return first.log.pod_name, f"cannot read the logs of {len(failed)} pods ({_reason(first.error)})"

    def stop(self) -> None:
        for reader in self._readers:
            reader.stop()
            self._work.put((Urgency.FAILED, "", next(self._numbers), None))

    @property
    def _interval(self) -> float:
        return max(len(self._logs) / READS_PER_SECOND, MIN_INTERVAL_SECONDS)

    def _take_back(self, each: SampledLog) -> None:
        each.is_in_hand = False
        each.plan_next(self._interval)
        if each.due == math.inf:
            each.log.forget()


def _reason(error: Exception | None) -> str:
    """Return why a log could not be read, rather than how often it was tried."""
    return str((error and error.__cause__) or error)


class _Reader(BackgroundThread):
    """Reads one log after another."""

    def __init__(
        self, work: "queue.PriorityQueue[Work]", done: "queue.SimpleQueue[SampledLog]", changed: Changes
    ) -> None:
        super().__init__("sampled logs", changed)
        self._work, self._done = work, done

    def _do_work(self) -> None:
        while (sampled := self._work.get()[-1]) is not None and not self.must_stop.is_set():
            sampled.read(self)
            self._done.put(sampled)
