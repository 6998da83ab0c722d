"""Annotations that are written while a job is followed.

The API server, or a webhook, may take long to accept each of them. Neither the job's states nor its log wait for that.
"""

from collections.abc import Callable, Mapping

from kubetrain_components.changes import Changes
from kubetrain_components.jobs.kubernetes.background import BackgroundThread

AGAIN_SECONDS = 60.0
"""Time after which values that could not be written are tried again."""


class Notes(BackgroundThread):
    """A thread that writes the newest value of each annotation until it is stopped."""

    def __init__(self, write: Callable[[Mapping[str, str]], bool]) -> None:
        super().__init__("notes", Changes())
        self._write = write
        self._pending: dict[str, str] = {}

    def put(self, values: Mapping[str, str]) -> None:
        with self.changed.lock:
            self._pending.update(values)
            self.changed.notify()

    def stop(self) -> None:
        super().stop()
        self.changed.notify()

    def _do_work(self) -> None:
        while values := self._take():
            if not self._write(values):
                self._put_back(values)
                self.must_stop.wait(AGAIN_SECONDS)

    def _take(self) -> dict[str, str]:
        """Wait for values; return none once the thread must stop."""
        with self.changed.lock:
            self.changed.wait_for(lambda: bool(self._pending) or self.must_stop.is_set())
            values, self._pending = self._pending, {}
            return {} if self.must_stop.is_set() else values

    def _put_back(self, values: Mapping[str, str]) -> None:
        with self.changed.lock:
            self._pending = {**values, **self._pending}
