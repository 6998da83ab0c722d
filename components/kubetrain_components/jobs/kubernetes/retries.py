"""Decide which errors of a server are retried, and for how long."""

import logging
import time

from kubetrain_components.jobs.kubernetes.background import pause
from kubetrain_components.jobs.kubernetes.errors import (
    Forbidden,
    KubernetesError,
    Misconfigured,
    Unauthorized,
    UnknownKind,
)

STARTUP_SECONDS = 20.0
FIRST_WORD_SECONDS = 30.0
WORD_SECONDS = 60.0
REFUSALS = (Unauthorized, Forbidden, UnknownKind)

log = logging.getLogger(__name__)


class ServerHistory:
    """The operations that a server has accepted so far, which tell stray refusals from final ones.

    Over a week, each of these happens to valid requests: a webhook that checks tokens is away, a gateway shows a login
    page or a "default backend", a server that has just started does not know all accounts, roles and kinds yet.
    """

    def __init__(self) -> None:
        self._operations: set[str] = set()
        self._last_trouble = -STARTUP_SECONDS

    def note_answer(self, operation: str) -> None:
        self._operations.add(operation)

    def note_trouble(self) -> None:
        self._last_trouble = time.monotonic()

    def is_stray(self, operation: str, error: KubernetesError) -> bool:
        """Return True if a retry may succeed, because the configuration or this operation has worked before."""
        if isinstance(error, Unauthorized | Misconfigured) and self._operations:
            return True
        if not isinstance(error, (*REFUSALS, Misconfigured)):
            self.note_answer(operation)  # an error of the request proves that the server and we understand each other
            return False
        is_starting = time.monotonic() - self._last_trouble <= STARTUP_SECONDS
        return isinstance(error, REFUSALS) and (is_starting or operation in self._operations)


class Waiting:
    """The pauses between the attempts at one request. Long ones are reported."""

    def __init__(self, request: str, seconds: float, *, tells_at_once: bool) -> None:
        self._request = request
        self._began = time.monotonic()
        self._seconds = seconds
        self._next_word = 0.0 if tells_at_once else FIRST_WORD_SECONDS

    def wait(self, seconds: float, error: Exception, final: Exception) -> None:
        """Wait, or raise the final error if the time would run out."""
        waited = time.monotonic() - self._began
        if waited + seconds > self._seconds:
            raise final from (None if final is error else error)
        is_due = waited >= self._next_word
        log.log(
            logging.WARNING if is_due else logging.INFO,
            "%s: %s; retrying for up to %.0f s (%.0f s so far)",
            self._request,
            error,
            self._seconds,
            waited,
        )
        if is_due:
            self._next_word = waited + WORD_SECONDS
        pause(seconds)
