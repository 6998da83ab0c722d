"""The number of parallel requests: as many as throughput gains from, but fewer if the store is overloaded."""

import time

from kubetrain_components.changes import Changes

RAMP = 4.0
STEP = 1.5
UP_SHARE = 0.3
"""More requests must gain this share of the gain in proportion, which counts up to twice the throughput."""
DOWN_SHARE = 0.97
"""Fewer requests must keep this share of the throughput."""
WINDOWS_BETWEEN_TRIALS = 6

MIN_REQUESTS, MIN_REQUESTS_FOR_SMALL_OBJECTS = 4, 2
"""One waits for the store while the other works; large pieces can be written and hashed by more at a time."""
WORK_SECONDS, WORK_SECONDS_PER_BYTE = 0.0005, 1e-9
"""Our own work for an object and its bytes, which makes objects of all sizes comparable."""
PIECE_BYTES = 4 << 20
"""Number of bytes of a large object that count like one small object when the throughput is measured."""
WINDOW_SECONDS, MAX_WINDOW_SECONDS = 0.1, 1.0
BURST_SECONDS = 1.0


class InFlight:
    """Lets workers run if their number is below a limit, which adapts to the store."""

    def __init__(self, maximum: int, minimum: int = MIN_REQUESTS, *, is_fixed: bool = False) -> None:
        """
        Args:
            is_fixed: Use the maximum, unless the store is overloaded.
        """
        self._maximum = maximum
        self._search = None if is_fixed else ThroughputSearch(minimum, maximum)
        self._ceiling = float(maximum)
        self._overloaded_at = 0.0
        self._turns = Changes()
        self._is_over = False
        self._stuck = 0
        self._pieces = 0.0
        self._window = (time.monotonic(), 0.0, 0.0)
        """The start of the window, and the pieces and the work done until then."""
        self.limit = self._search.limit if self._search else maximum

    def wait_for_turn(self, worker: int) -> None:
        if not self._has_turn(worker):
            self._turns.wait_for(lambda: self._has_turn(worker) or self._is_over)

    def steer(self, now: float, completed: int, received: int) -> None:
        """Adapt the limit to the throughput, from the requests completed and the bytes received until now."""
        work = completed * WORK_SECONDS + received * WORK_SECONDS_PER_BYTE
        pieces = completed + received / PIECE_BYTES
        started, pieces_before, work_before = self._window
        seconds = now - started
        with self._turns.lock:
            self._ceiling = min(self._maximum, self._ceiling + (pieces - self._pieces) / self._ceiling)
            self._pieces = pieces
            is_measured = seconds >= WINDOW_SECONDS and pieces - pieces_before >= self.limit
            if is_measured or seconds >= MAX_WINDOW_SECONDS:
                self._window = (now, pieces, work)
                if self._search:
                    self._search.record((work - work_before) / seconds)
            self._set_limit(self._search.limit if self._search else self._maximum)

    def lower_minimum(self) -> None:
        """Allow fewer requests, because only small objects are left to start."""
        if self._search:
            self._search.minimum = min(MIN_REQUESTS_FOR_SMALL_OBJECTS, self._maximum)

    def set_stuck(self, workers: int) -> None:
        """Let other workers run instead of those that are stuck."""
        if workers != self._stuck:
            with self._turns.lock:
                self._stuck = workers
                self._turns.notify()

    def back_off(self) -> None:
        """Halve the limit because the store is overloaded; a burst of such responses counts once."""
        with self._turns.lock:
            if time.monotonic() - self._overloaded_at > BURST_SECONDS:
                self._overloaded_at = time.monotonic()
                self._ceiling = max(1.0, self.limit / 2)
                self._set_limit(self.limit)

    def end(self) -> None:
        """Let all workers run, because no work is left."""
        with self._turns.lock:
            self._is_over = True
            self._turns.notify()

    def _has_turn(self, worker: int) -> bool:
        return worker < min(self.limit + self._stuck, max(self.limit, self._ceiling))

    def _set_limit(self, wanted: int) -> None:
        before, self.limit = self.limit, min(wanted, int(self._ceiling))
        if self.limit > before:
            self._turns.notify()


class ThroughputSearch:
    """Tries more requests, then fewer, and keeps a number if the measured throughput is worth it."""

    def __init__(self, minimum: int, maximum: int) -> None:
        """Start with the minimum."""
        self.limit = self.minimum = min(minimum, maximum)
        """The number to use in the next window, and the fewest."""
        self._maximum = maximum
        self._best = self.limit
        self._rate = 0.0
        """Throughput with the best number."""
        self._factor = RAMP
        self._trials = 0
        self._windows = 0

    def record(self, rate: float) -> None:
        """Record the throughput of a window with the current limit."""
        if self.limit != self._best:
            self._judge(rate)
            return
        self._rate = (3 * self._rate + rate) / 4 if self._rate else rate
        self._windows += 1
        if self._windows >= WINDOWS_BETWEEN_TRIALS or self._factor == RAMP:
            self._windows = self._trials = 0
            self._try()

    def _judge(self, rate: float) -> None:
        wanted = 1 + UP_SHARE * min(self.limit / self._best - 1, 1) if self.limit > self._best else DOWN_SHARE
        if rate >= wanted * self._rate:
            if self.limit < self._best:
                self._trials = 2  # go down slowly, because too few requests cost more than too many
            self._best, self._rate = self.limit, rate
        else:
            self._factor = 1 / STEP if self.limit > self._best else STEP
            self._trials += 1
        self._try()

    def _try(self) -> None:
        """Try another number, unless both directions were tried since the last pause."""
        tried = round(self._best * self._factor)
        tried = min(max(tried, self._best + 1) if self._factor > 1 else min(tried, self._best - 1), self._maximum)
        tried = max(tried, self.minimum)
        if tried == self._best and self._trials < 2:
            self._trials += 1
            self._factor = STEP if self._factor < 1 else 1 / STEP
            self._try()
            return
        self.limit = self._best if self._trials >= 2 else tried
