"""Every line of every pod of a job, live: in order for each pod, none lost, none repeated."""

import contextlib
import queue
import time
from collections.abc import Callable, Iterator

from kubetrain_components.jobs.job import LogLine
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.log_position import SECOND, nanoseconds, rfc3339
from kubetrain_components.jobs.kubernetes.pod_log import Lines, PodLog
from kubetrain_components.jobs.kubernetes.watched import Watched
from kubetrain_components.manifest import Manifest

MAX_QUEUED_BATCHES = 64
"""Limits the memory of lines that have been read and not yet passed on."""
POLL_SECONDS = 0.2
MAX_DELAY = 5 * SECOND
"""Lines that different pods write at the same time arrive within this time of each other."""


class PodLogs:
    def __init__(
        self,
        api: KubernetesApi,
        pods: Watched,
        container: str,
        name_of: Callable[[Manifest], str],
        since: str = "",
    ) -> None:
        """Read the container with this name in each pod, from the line after `since` (RFC 3339)."""
        self._api, self._pods, self._container, self._name_of = api, pods, container, name_of
        self._since = (nanoseconds(since) or 0) if since else 0
        self._newest = self._since
        self._logs: dict[str, PodLog] = {}
        self._reported: set[str] = set()
        self._queue: queue.Queue[Lines] = queue.Queue(MAX_QUEUED_BATCHES)

    @property
    def position(self) -> str:
        """Time (RFC 3339) up to which all lines have been passed on; empty if none have."""
        unfinished = [log for log in self._logs.values() if not log.is_passed_on]
        for log in unfinished:
            if log.is_quiet:  # anything written by then would have arrived
                log.passed_until = max(log.passed_until, self._newest - MAX_DELAY)
        passed_until = min((log.passed_until for log in unfinished), default=self._newest)
        return rfc3339(passed_until) if self._newest else ""

    def lines(self, is_over: Callable[[], bool]) -> Iterator[LogLine]:
        """Yield lines until is_over() and the logs of all ended containers have been read, or the watch has ended."""
        try:
            while self._pods.error is None and not self._pods.must_stop.is_set():
                self._begin_new()
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
        for text in batch.texts:
            yield LogLine(batch.log.pod_name, text)
        batch.log.passed += 1
        batch.log.passed_until = batch.until
        self._newest = max(self._newest, batch.until)

    def _are_read(self) -> bool:
        return self._pods.has_synced and all(
            pod.uid in self._logs and self._logs[pod.uid].has_read(pod) for pod in self._pods.objects()
        )

    def _begin_new(self) -> None:
        for pod in self._pods.objects():
            if pod.uid not in self._logs:
                name = self._name_of(pod.manifest)
                log = PodLog(self._api, self._pods, pod.manifest, self._container, name, self._since, self._queue)
                self._logs[pod.uid] = log
                log.start()

    def _troubles(self) -> Iterator[LogLine]:
        """Yield a line for each new reason why logs cannot be read."""
        for log in self._logs.values():
            reason = str(log.error or log.trouble or "")
            if reason and reason not in self._reported:
                self._reported.add(reason)
                yield LogLine(log.pod_name, f"warning: the launcher cannot read this log ({reason}); the job continues")

    def _stop(self) -> None:
        for log in self._logs.values():
            log.stop()
        self._pods.changed.notify()
