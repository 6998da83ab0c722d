"""The lines of a job's pods, live: in order for each pod, none lost, none repeated.

In a large job only the lead pod is followed like this, and pods that write something alarming. The logs of the other
pods are sampled.
"""

import contextlib
import queue
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from kubetrain_components.jobs.job_logs import is_alarming
from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.container_log import ContainerLog, Lines
from kubetrain_components.jobs.kubernetes.log_position import SECOND, nanoseconds, rfc3339
from kubetrain_components.jobs.kubernetes.pod_log import PodLog
from kubetrain_components.jobs.kubernetes.sampled_logs import SampledLogs
from kubetrain_components.jobs.kubernetes.watched import Watched, WatchedObject
from kubetrain_components.manifest import Manifest

MAX_SAME = 3
COUNT_SECONDS = 10.0
VARYING = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)
"""Parts of a line that differ between pods: times, ranks, addresses."""

MAX_QUEUED_BATCHES = 64
"""Limits the memory of lines that have been read and not yet passed on."""
POLL_SECONDS = 0.2
LOOK_SECONDS = 1.0
"""Interval of checking which sampled logs are due."""
MAX_DELAY = 5 * SECOND
"""Lines that different pods write at the same time arrive within this time of each other."""
MAX_ALARMING_PODS = 16
"""Max number of pods of a large job that are followed because they wrote something alarming."""
SAMPLES_BEFORE = 2700 * SECOND
"""Sampled logs were read up to this time before the position: alarming lines may be shown twice, but not missed."""


class PodLogs:
    def __init__(
        self,
        api: KubernetesApi,
        pods: Watched,
        container: str,
        name_of: Callable[[Manifest], str],
        since: str = "",
        only: str = "",
    ) -> None:
        """
        Args:
            container: Name of the container in each pod.
            since: Time (RFC 3339) of the line after which to begin.
            only: The pod to follow; empty: all of them.
        """
        self._api, self._pods, self._container, self._name_of = api, pods, container, name_of
        self._since = (nanoseconds(since) or 0) if since else 0
        self._newest = self._since
        self._only = only
        self._logs: dict[str, PodLog] = {}
        self._sampled: dict[str, ContainerLog] = {}
        self._samples = SampledLogs(pods.changed)
        self._alarms = Alarms()
        self._alarming: dict[str, ContainerLog] = {}
        """Sampled logs to follow from now on."""
        self._changes_seen = -1
        self._look_again_at = 0.0
        self._reported: set[str] = set()
        self._queue: queue.Queue[Lines] = queue.Queue(MAX_QUEUED_BATCHES)

    @property
    def position(self) -> str:
        """Time (RFC 3339) up to which all lines have been passed on; empty if none have."""
        unfinished = [log for log in self._logs.values() if not log.is_passed_on]
        for item in unfinished:
            if item.is_quiet:  # anything written by then would have arrived
                item.log.passed_until = max(item.log.passed_until, self._newest - MAX_DELAY)
        passed_until = min((each.log.passed_until for each in unfinished), default=self._newest)
        return rfc3339(passed_until) if self._newest else ""

    def lines(self, is_over: Callable[[], bool]) -> Iterator[LogLine]:
        """Yield lines until is_over() and the logs of all ended containers have been read, or the watch has ended."""
        try:
            while self._pods.error is None and not self._pods.must_stop.is_set():
                if self._note_changes() or time.monotonic() >= self._look_again_at:
                    self._look_again_at = time.monotonic() + LOOK_SECONDS
                    self._follow_alarming()
                    self._samples.hand_out()
                is_last_pass = is_over() and self._are_read()
                yield from self._troubles()
                yield from self._arrived() if is_last_pass else self._arriving()
                yield from self._alarms.counted(is_end=is_last_pass)
                if is_last_pass:
                    return
        finally:
            self._stop()

    def _arriving(self) -> Iterator[LogLine]:
        until = time.monotonic() + POLL_SECONDS
        with contextlib.suppress(queue.Empty):
            while (left := until - time.monotonic()) > 0:
                yield from self._pass_on(self._queue.get(timeout=left))

    def _arrived(self) -> Iterator[LogLine]:
        for _ in range(self._queue.qsize()):
            yield from self._pass_on(self._queue.get())

    def _pass_on(self, batch: Lines) -> Iterator[LogLine]:
        log = batch.log
        for text in batch.texts:
            line = LogLine(log.pod_name, text)
            if log.is_followed:
                yield line
            elif is_alarming(text) and self._alarms.accept(line):
                self._alarming[log.uid] = log
                yield line
            else:
                yield replace(line, is_sampled=True)
        log.passed += 1
        log.passed_until = batch.until
        if log.is_followed:
            self._newest = max(self._newest, batch.until)

    def _are_read(self) -> bool:
        return self._pods.has_synced and all(
            self._logs[pod.uid].has_read(pod) if pod.uid in self._logs else self._has_sampled(pod)
            for pod in self._pods.objects()
        )

    def _has_sampled(self, pod: WatchedObject) -> bool:
        return pod.uid in self._sampled and self._samples.have_read(pod)

    def _note_changes(self) -> bool:
        """Return True if pods have changed."""
        if self._changes_seen == self._pods.changes:
            return False
        self._changes_seen = self._pods.changes
        pods = self._pods.objects()
        for pod in pods:
            if pod.uid not in self._logs and pod.uid not in self._sampled:
                self._begin(pod.manifest)
        self._samples.update(pods)
        return True

    def _begin(self, pod: Manifest) -> None:
        name = self._name_of(pod)
        is_followed = self._only in ("", name)
        since = self._since if is_followed else max(self._since - SAMPLES_BEFORE, 0)
        log = ContainerLog(self._api, pod, self._container, name, since, self._queue, is_followed=is_followed)
        if is_followed:
            self._follow(log)
        else:
            self._sampled[log.uid] = log
            self._samples.add(log)

    def _follow(self, log: ContainerLog) -> None:
        self._logs[log.uid] = PodLog(log, self._pods)
        self._logs[log.uid].start()

    def _follow_alarming(self) -> None:
        """Follow the pods that wrote something alarming, as long as they are few."""
        for uid, log in list(self._alarming.items()):
            is_full = sum(item.is_alive() for item in self._logs.values()) > MAX_ALARMING_PODS
            if is_full or self._samples.remove(log):
                del self._alarming[uid]
                if not is_full:
                    log.is_followed = True
                    self._follow(log)

    def _troubles(self) -> Iterator[LogLine]:
        """Yield a line for each new reason why logs cannot be read."""
        for log in self._logs.values():
            reason = str(log.error or log.trouble or "").replace(log.log.path, "…")
            if reason and reason not in self._reported:
                self._reported.add(reason)
                yield _warning(log.log.pod_name, f"cannot read this log ({reason})")
        if (trouble := self._samples.trouble()) is not None:
            yield _warning(*trouble)

    def _stop(self) -> None:
        for log in self._logs.values():
            log.stop()
        self._samples.stop()
        self._pods.changed.notify()


def _warning(pod: str, what: str) -> LogLine:
    return LogLine(pod, f"warning: the launcher {what}; the job continues")


@dataclass
class _Kind:
    """Lines that differ only in numbers."""

    until: float
    shown: int = 0
    more: int = 0
    last: LogLine | None = None


class Alarms:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}

    def accept(self, line: LogLine) -> bool:
        """Return True if the line must be shown; else count it."""
        kind = self._kinds.setdefault(VARYING.sub("#", line.text), _Kind(self._clock() + COUNT_SECONDS))
        if kind.shown < MAX_SAME:
            kind.shown += 1
            return True
        kind.more, kind.last = kind.more + 1, line
        return False

    def counted(self, *, is_end: bool = False) -> Iterator[LogLine]:
        """Yield a line for each kind of lines that were only counted for a while."""
        for key, kind in list(self._kinds.items()):
            if is_end or self._clock() >= kind.until:
                del self._kinds[key]
                if kind.last is not None:
                    yield LogLine(
                        kind.last.pod, f"{kind.last.text} (and {kind.more - 1} more such lines of other pods)"
                    )
