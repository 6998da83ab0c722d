"""Waiting for what the cluster does in its own time: bounded, and telling now and then what for."""

import time
from collections.abc import Callable

from kubetrain_trainer.errors import KubetrainError

POLL_SECONDS = 1.0
HEARTBEAT_SECONDS = 30.0

Say = Callable[[str], None]


class Waiting:
    def __init__(self, say: Say, seconds: float, remedy: str) -> None:
        self._say, self._seconds, self._remedy = say, seconds, remedy
        self._began = time.monotonic()
        self._said = ("", 0.0)

    def poll(self, sentence: str) -> None:
        """A little longer.

        Raises:
            KubetrainError: saying what was waited for, where it has been long enough.
        """
        waited = time.monotonic() - self._began
        if waited >= self._seconds:
            raise KubetrainError(f"{sentence}, for more than the {self._seconds:.0f} s allowed: {self._remedy}")
        said, when = self._said
        if sentence != said or waited - when >= HEARTBEAT_SECONDS:
            self._said = (sentence, waited)
            self._say(f"waits: {sentence} ({waited:.0f} s)")
        time.sleep(min(POLL_SECONDS, self._seconds - waited))
