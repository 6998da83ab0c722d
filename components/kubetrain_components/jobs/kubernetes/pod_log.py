"""A thread that follows the log of one pod live: every run of its container, without losing a line."""

import logging
import time

from kubetrain_components.jobs.kubernetes.background import BackgroundThread
from kubetrain_components.jobs.kubernetes.container_log import ContainerLog, Run
from kubetrain_components.jobs.kubernetes.errors import (
    BadRequest,
    Forbidden,
    KubernetesError,
    NotFound,
    StreamSilent,
    Unauthorized,
)
from kubetrain_components.jobs.kubernetes.pod_end import has_ended
from kubetrain_components.jobs.kubernetes.watched import Watched, WatchedObject

RETRY_SECONDS = 30.0
READ_TIMEOUT_SECONDS = 300.0
"""A stream is reopened if nothing arrives for this long."""
QUIET_SECONDS = RETRY_SECONDS + 10
PAUSE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class PodLog(BackgroundThread):
    """
    The end of a stream does not prove the end of a log, because servers restart. A run counts as read once it is known
    to be over and then was read from the last position to the end of the stream.
    """

    def __init__(self, log: ContainerLog, pods: Watched) -> None:
        super().__init__(f"log of {log.pod_name}", pods.changed)
        self.log = log
        self.trouble: BaseException | None = None
        """The error for which the log was last not read; it is read again later unless the thread has ended."""
        self._pods = pods

    @property
    def is_quiet(self) -> bool:
        """Return True if nothing arrives because the pod writes nothing."""
        return self.log.handed == self.log.passed and time.monotonic() - self.log.last_trouble > QUIET_SECONDS

    @property
    def is_passed_on(self) -> bool:
        return not self.is_alive() and self.log.handed == self.log.passed

    def has_read(self, pod: WatchedObject) -> bool:
        """Return True if all lines of the runs that are over have been read."""
        return not self.is_alive() or (not pod.is_gone and self.log.has_read(pod.manifest))

    def _do_work(self) -> None:
        try:
            while not self.must_stop.is_set():
                if self._could_read_runs():
                    return
                self.must_stop.wait(RETRY_SECONDS)
        finally:
            self.log.forget()

    def _could_read_runs(self) -> bool:
        """Return False if that is worth another try. Without permission it is not."""
        try:
            self._read_runs()
        except Exception as error:  # noqa: BLE001 - PodLogs reports it: a log that cannot be read is not a verdict
            self.trouble, self.log.last_trouble = error, time.monotonic()
            return isinstance(error, Forbidden | Unauthorized)
        return True

    def _read_runs(self) -> None:
        while not self.must_stop.is_set():
            known = self._pods.find(self.log.uid)
            pod = self.log.api.get(self.log.path)  # a watch may be late
            if pod is None or pod["metadata"]["uid"] != self.log.uid:
                return
            run = Run.of(pod, self.log.container)
            if run is not None and run.number >= self.log.runs_read:
                self._read_run(run)
            elif has_ended(pod):
                return
            else:
                self._wait_for_change(known)

    def _read_run(self, run: Run) -> None:
        known = self._pods.find(self.log.uid)
        if self._is_read(run):
            self.log.runs_read = run.number + 1
        else:
            self._wait_for_change(known, PAUSE_SECONDS)

    def _is_read(self, run: Run) -> bool:
        if run.number > self.log.runs_read:
            if not self._read(run.number - 1, previous="true"):  # the rest of the run before this one
                return False
            self.log.runs_read = run.number
        if run.is_over:
            return self._read(run.number)
        self._read(run.number, follow="true")
        return False

    def _is_newest(self, run: int) -> bool:
        """Return False if the container has restarted: a request for its log then means the log of the new run."""
        pod = self.log.api.get(self.log.path)
        newest = Run.of(pod, self.log.container) if pod else None
        return newest is None or newest.number == run

    def _wait_for_change(self, known: WatchedObject | None, seconds: float | None = None) -> None:
        self._pods.changed.wait_for(
            lambda: self.must_stop.is_set() or self._pods.find(self.log.uid) is not known, seconds
        )

    def _read(self, run: int, **query: str) -> bool:
        """Return True if the log was read to its end, or cannot be read."""
        limits = {"retry_seconds": RETRY_SECONDS, "read_timeout": READ_TIMEOUT_SECONDS}
        try:
            with self.log.opened(self, run, **limits, **query) as stream:
                if "previous" not in query and not self._is_newest(run):
                    return False
                self.log.read(self, run, stream, is_complete="follow" not in query)
        except StreamSilent:
            return False
        except (BadRequest, NotFound):
            return True  # the run has not begun, or its log is gone
        except Forbidden:
            raise
        except KubernetesError as error:  # may be the kubelet's; the next GET fails if it is the API server's
            logger.info("log of %s: %s", self.log.pod_name, error)
            self.log.last_trouble = time.monotonic()
            return False
        return True
