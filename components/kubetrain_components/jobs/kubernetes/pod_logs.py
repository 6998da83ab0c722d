"""The lines of a job's pods, live: in order for each pod, none lost, none repeated.

In a large job only the lead pod is followed like this, and some of the pods that fail.
"""

import contextlib
import queue
import time
from collections.abc import Callable, Iterator

from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.container_log import ContainerLog, Lines
from kubetrain_components.jobs.kubernetes.log_position import SECOND, nanoseconds, rfc3339
from kubetrain_components.jobs.kubernetes.pod_end import newest_end
from kubetrain_components.jobs.kubernetes.pod_log import PodLog
from kubetrain_components.jobs.kubernetes.watched import Watched
from kubetrain_components.manifest import Manifest

MAX_QUEUED_BATCHES = 64
"""Limits the memory of lines that have been read and not yet passed on."""
POLL_SECONDS = 0.2
MAX_DELAY = 5 * SECOND
"""Lines that different pods write at the same time arrive within this time of each other."""
MAX_FAILED_PODS = 16
"""Max number of pods of a large job that are followed because they failed."""
BEFORE_FAILURE = 60 * SECOND
"""Their logs are read from this time before they failed."""


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
            only: The pod to follow from its beginning; empty: all of them.
        """
        self._api, self._pods, self._container, self._name_of = api, pods, container, name_of
        self._since = (nanoseconds(since) or 0) if since else 0
        self._newest = self._since
        self._only = only
        self._logs: dict[str, PodLog] = {}
        self._changes_seen = -1
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
                self._note_changes()
                is_last_pass = is_over() and self._are_read()
                yield from self._troubles()
                yield from self._arrived() if is_last_pass else self._arriving()
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
            yield LogLine(log.pod_name, text)
        log.passed += 1
        log.passed_until = batch.until
        self._newest = max(self._newest, batch.until)

    def _are_read(self) -> bool:
        return self._pods.has_synced and all(
            pod.uid not in self._logs or self._logs[pod.uid].has_read(pod) for pod in self._pods.objects()
        )

    def _note_changes(self) -> None:
        """Follow new pods, if pods have changed."""
        if self._changes_seen == self._pods.changes:
            return
        self._changes_seen = self._pods.changes
        for pod in self._pods.objects():
            if pod.uid not in self._logs and (since := self._beginning(pod.manifest)) is not None:
                self._follow(pod.manifest, since)

    def _beginning(self, pod: Manifest) -> int | None:
        """Return the time from which to read the log of a pod; None: not at all, or not yet."""
        if self._only in ("", self._name_of(pod)):
            return self._since
        end = newest_end(self._container, [pod])
        if not end.exit_code or sum(log.is_alive() for log in self._logs.values()) > MAX_FAILED_PODS:
            return None
        return max(self._since, int(end.finished) * SECOND - BEFORE_FAILURE)

    def _follow(self, pod: Manifest, since: int) -> None:
        log = ContainerLog(self._api, pod, self._container, self._name_of(pod), since, self._queue)
        self._logs[log.uid] = PodLog(log, self._pods)
        self._logs[log.uid].start()

    def _troubles(self) -> Iterator[LogLine]:
        """Yield a line for each new reason why logs cannot be read."""
        for log in self._logs.values():
            reason = str(log.error or log.trouble or "").replace(log.log.path, "…")
            if reason and reason not in self._reported:
                self._reported.add(reason)
                warning = f"warning: the launcher cannot read this log ({reason}); the job continues"
                yield LogLine(log.log.pod_name, warning)

    def _stop(self) -> None:
        for log in self._logs.values():
            log.stop()
        self._pods.changed.notify()
