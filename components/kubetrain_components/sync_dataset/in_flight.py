"""The number of parallel requests: enough to hide the latency, but fewer if the store is overloaded."""

import threading
import time
from collections import deque

MIN_REQUESTS = 4
"""Minimum for large pieces: this many threads can write and hash in parallel."""
MIN_REQUESTS_FOR_SMALL_OBJECTS = 2
"""One waits for the store while the other works; more would wait for the interpreter lock."""
WORK_SECONDS = 0.0005
"""Our own work for a small object: a latency n times as long is hidden by n requests."""
SAMPLES = 64
BURST_SECONDS = 1.0


class InFlight:
    """Lets workers run if their number is below a limit, which adapts to the store."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._ceiling = float(maximum)
        self._overloaded_at = 0.0
        self._latencies: deque[float] = deque(maxlen=SAMPLES)
        self._turns = threading.Condition()
        self._is_over = False
        self._stuck = 0
        self._minimum = MIN_REQUESTS
        self.limit = min(MIN_REQUESTS, maximum)

    def wait_for_turn(self, worker: int) -> None:
        if not self._has_turn(worker):
            with self._turns:
                self._turns.wait_for(lambda: self._has_turn(worker) or self._is_over)

    def record_latency(self, seconds: float) -> None:
        """Record the latency of a response.

        The limit follows the shortest recent latency: longer ones include our own threads waiting for each other.
        """
        self._latencies.append(seconds)
        with self._turns:
            self._ceiling = min(self._maximum, self._ceiling + 1 / self._ceiling)
            self._set_limit(int(min(self._latencies) / WORK_SECONDS))

    def lower_minimum(self) -> None:
        """Allow fewer requests, because only small objects are left to start."""
        self._minimum = MIN_REQUESTS_FOR_SMALL_OBJECTS

    def set_stuck(self, workers: int) -> None:
        """Let other workers run instead of those that are stuck."""
        if workers != self._stuck:
            with self._turns:
                self._stuck = workers
                self._turns.notify_all()

    def back_off(self) -> None:
        """Halve the limit because the store is overloaded; a burst of such responses counts once."""
        with self._turns:
            if time.monotonic() - self._overloaded_at > BURST_SECONDS:
                self._overloaded_at = time.monotonic()
                self._ceiling = max(1.0, self.limit / 2)
                self._set_limit(self.limit)

    def end(self) -> None:
        """Let all workers run, because no work is left."""
        with self._turns:
            self._is_over = True
            self._turns.notify_all()

    def _has_turn(self, worker: int) -> bool:
        return worker < min(self.limit + self._stuck, max(self.limit, self._ceiling))

    def _set_limit(self, wanted: int) -> None:
        before, self.limit = self.limit, min(max(self._minimum, wanted), int(self._ceiling))
        if self.limit > before:
            self._turns.notify_all()
