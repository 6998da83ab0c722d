"""The search for the fewest parallel requests that reach the highest throughput."""

RAMP = 4.0
STEP = 1.5
UP_SHARE = 0.3
"""More requests must gain this share of the gain in proportion, which counts up to twice the throughput."""
DOWN_SHARE = 0.97
"""Fewer requests must keep this share of the throughput."""
WINDOWS_BETWEEN_TRIALS = 6


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
