"""Every line of every pod of a job, live: in order for each pod, none twice, none lost."""

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

MAX_WAITING = 64
"""Batches of lines between the threads that read and the one that passes on: so much memory they take, and no more."""
LOOK_SECONDS = 0.2
LATENESS = 5 * SECOND
"""Lines of different pods that were written at the same time arrive within that."""


class PodLogs:
    def __init__(
        self,
        api: KubernetesApi,
        pods: Watched,
        container: str,
        name_of: Callable[[Manifest], str],
        since: str = "",
    ) -> None:
        """Of the container with this name in each pod; since: only lines after that time (RFC 3339)."""
        self._api, self._pods, self._container, self._name_of = api, pods, container, name_of
        self._since = (nanoseconds(since) or 0) if since else 0
        self._newest = self._since
        self._logs: dict[str, PodLog] = {}
        self._queue: queue.Queue[Lines] = queue.Queue(MAX_WAITING)

    @property
    def position(self) -> str:
        """A time (RFC 3339) such that all lines up to it have been passed on; empty where none has."""
        unfinished = [log for log in self._logs.values() if not log.is_passed_on]
        for log in unfinished:
            if log.is_calm:  # had it written anything by then, it would have come
                log.passed_until = max(log.passed_until, self._newest - LATENESS)
        passed_until = min((log.passed_until for log in unfinished), default=self._newest)
        return rfc3339(passed_until) if self._newest else ""

    def lines(self, is_over: Callable[[], bool]) -> Iterator[LogLine]:
        """Until it is over, and the logs of all containers that ended are read to their ends."""
        try:
            while True:
                self._begin_new()
                is_last_look = is_over() and self._are_read()
                self._check()
                yield from self._arrived() if is_last_look else self._arriving()
                if is_last_look:
                    return
        finally:
            self._stop()

    def _arriving(self) -> Iterator[LogLine]:
        until = time.monotonic() + LOOK_SECONDS
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

    def _check(self) -> None:
        for error in [self._pods.error, *(log.error for log in self._logs.values())]:
            if error is not None:
                raise error

    def _stop(self) -> None:
        for log in self._logs.values():
            log.stop()
        with self._pods.changed:
            self._pods.changed.notify_all()
