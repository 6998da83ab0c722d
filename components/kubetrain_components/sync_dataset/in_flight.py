"""How many requests run at once: as many as hide the latency, and fewer while the store asks for it."""

import threading
import time
from collections import deque

LEAST = 4
"""So many write and hash at once where the pieces are large."""
MIN_OF_SMALL = 2
"""One waits for the store while the other works: more would queue for the interpreter."""
OWN_SECONDS = 0.0005
"""What we do for one small object: while the store takes n times as long to answer, n others can be served."""
ANSWERS = 64
BURST_SECONDS = 1.0


class InFlight:
    """A turn for each worker whose number is below the limit, which moves."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._ceiling = float(most)
        self._overloaded = 0.0
        self._waits: deque[float] = deque(maxlen=ANSWERS)
        self._turns = threading.Condition()
        self._is_over = False
        self._stuck = 0
        self._least = LEAST
        self.limit = min(LEAST, most)

    def wait_for_turn(self, worker: int) -> None:
        if not self._has_turn(worker):
            with self._turns:
                self._turns.wait_for(lambda: self._has_turn(worker) or self._is_over)

    def answered(self, seconds: float) -> None:
        """A store began to answer after this long.

        The shortest wait of many counts: the others are our own, for one another.
        """
        self._waits.append(seconds)
        with self._turns:
            self._ceiling = min(self._most, self._ceiling + 1 / self._ceiling)
            self._set_limit(int(min(self._waits) / OWN_SECONDS))

    def only_small_left(self) -> None:
        """No part of a large object is left to begin."""
        self._least = MIN_OF_SMALL

    def stuck(self, workers: int) -> None:
        """So many wait for servers that fell silent: others take their turns."""
        if workers != self._stuck:
            with self._turns:
                self._stuck = workers
                self._turns.notify_all()

    def overloaded(self) -> None:
        """The store asked for patience. A burst of such answers counts once."""
        with self._turns:
            if time.monotonic() - self._overloaded > BURST_SECONDS:
                self._overloaded = time.monotonic()
                self._ceiling = max(1.0, self.limit / 2)
                self._set_limit(self.limit)

    def end(self) -> None:
        """Let those that wait see that there is nothing to wait for."""
        with self._turns:
            self._is_over = True
            self._turns.notify_all()

    def _has_turn(self, worker: int) -> bool:
        return worker < min(self.limit + self._stuck, max(self.limit, self._ceiling))

    def _set_limit(self, wanted: int) -> None:
        before, self.limit = self.limit, min(max(self._least, wanted), int(self._ceiling))
        if self.limit > before:
            self._turns.notify_all()
