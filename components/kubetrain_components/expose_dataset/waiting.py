"""Wait for the cluster with a timeout, and periodically report the reason."""

import time
from collections.abc import Callable

from kubetrain_trainer.errors import KubetrainError

POLL_SECONDS = 1.0
HEARTBEAT_SECONDS = 30.0

Say = Callable[[str], None]


class Waiting:
    def __init__(self, say: Say, timeout_seconds: float, remedy: str) -> None:
        self._say, self._timeout_seconds, self._remedy = say, timeout_seconds, remedy
        self._began = time.monotonic()
        self._last_report = ("", 0.0)

    def poll(self, reason: str) -> None:
        """Wait until the next poll.

        Raises:
            KubetrainError: with the reason, after the timeout.
        """
        waited = time.monotonic() - self._began
        if waited >= self._timeout_seconds:
            raise KubetrainError(f"{reason}, after the timeout of {self._timeout_seconds:.0f} s: {self._remedy}")
        last_reason, reported = self._last_report
        if reason != last_reason or waited - reported >= HEARTBEAT_SECONDS:
            self._last_report = (reason, waited)
            self._say(f"waiting: {reason} ({waited:.0f} s)")
        time.sleep(min(POLL_SECONDS, self._timeout_seconds - waited))
