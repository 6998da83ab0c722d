"""The PVCs of a namespace: a port whose adapters make no decisions, and a wait for a PVC."""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from kubetrain_components.manifest import Manifest
from kubetrain_trainer.errors import KubetrainError

POLL_SECONDS = 1.0
HEARTBEAT_SECONDS = 30.0

Say = Callable[[str], None]

CLAIM = "PersistentVolumeClaim"


class Claims(Protocol):
    def find(self, name: str) -> Manifest | None: ...

    def all(self) -> list[Manifest]:
        """Return all PVCs, each with its kind."""
        ...

    def create(self, manifest: Manifest) -> bool:
        """Create the PVC; return False if the name is taken."""
        ...

    def annotate(self, found: Manifest, values: Mapping[str, str]) -> Manifest | None:
        """Annotate this PVC and return it; None if it is gone, even if another PVC has its name."""
        ...

    def delete(self, name: str, preconditions: Mapping[str, str]) -> bool:
        """Delete the PVC with this uid and resourceVersion; return False if it does not exist or has changed."""
        ...

    def storage_class(self, name: str) -> Manifest | None:
        """Return the storage class; None if it does not exist or our account may not read it."""
        ...

    def warnings(self, name: str) -> list[str]:
        """Return the messages of a PVC's warning events, newest last; none if our account may not read events."""
        ...

    def users(self) -> list[Manifest]:
        """Return all pods, and all jobs of kubetrain's kinds because a waiting job has no pods, each with its kind.

        Raises:
            KubetrainError: if our account may not list all of them.
        """
        ...


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
