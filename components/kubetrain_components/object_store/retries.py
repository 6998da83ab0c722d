"""How long a request that a store could not answer is tried again: for minutes, because servers restart."""

import math
import os
import random
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from kubetrain_components.object_store.store import StoreUnavailable

GIVE_UP_SECONDS = 300.0
"""Time without progress after which a request fails."""
FIRST_BACK_OFF_SECONDS = 0.25
MAX_BACK_OFF_SECONDS = 10.0
MAX_ATTEMPTS_BEFORE_FIRST_ANSWER = 4
"""A server that never answered is rather a wrong address than a server that restarts."""
MAX_CORRUPT_DOWNLOADS = 3
ATTEMPTS_VARIABLE = "AWS_MAX_ATTEMPTS"
QUIET_SECONDS = 10.0

T = TypeVar("T")


class Retries:
    """The retries of one request since it last made progress."""

    def __init__(self) -> None:
        self._failures = 0
        self._since = 0.0

    def restart(self) -> None:
        """Note that the request made progress."""
        self._failures = 0

    @property
    def seconds(self) -> float:
        """The time since the first failure."""
        return time.monotonic() - self._since if self._failures else 0.0

    def pause_after(self, error: StoreUnavailable) -> float:
        """Return the seconds to wait before the next attempt: longer each time, or as long as the server asks.

        Raises:
            StoreUnavailable: this error, if it is time to give up.
        """
        if not self._failures:
            self._since = time.monotonic()
        self._failures += 1
        left = GIVE_UP_SECONDS - self.seconds
        if left <= 0 or self._failures >= _max_attempts(error):
            raise error
        back_off = min(MAX_BACK_OFF_SECONDS, FIRST_BACK_OFF_SECONDS * 2 ** min(self._failures - 1, 10))
        return min(left, max(random.uniform(back_off / 2, back_off), error.retry_after))


class AnnouncedRetries(Retries):
    """Retries that say once why a request takes long."""

    def __init__(self) -> None:
        super().__init__()
        self._was_told = False

    def pause_after(self, error: StoreUnavailable) -> float:
        pause = super().pause_after(error)
        if not self._was_told and self.seconds + pause > QUIET_SECONDS:
            self._was_told = True
            print(f"trying again for up to {GIVE_UP_SECONDS / 60:.0f} min: {error}", file=sys.stderr, flush=True)
        return pause


def with_retries(request: Callable[[], T]) -> T:
    """
    Raises:
        StoreUnavailable: if the request failed for too long.
    """
    retries = AnnouncedRetries()
    while True:
        try:
            return request()
        except StoreUnavailable as error:
            pause = retries.pause_after(error)
        time.sleep(pause)


def seconds_to_wait(retry_after: str, date: str) -> float:
    """Return the seconds in a Retry-After header, which has a number or a date by the server's clock."""
    if retry_after.isdecimal():
        return float(retry_after)
    try:
        until = parsedate_to_datetime(retry_after)
        now = parsedate_to_datetime(date) if date else datetime.now(UTC)
        return max(0.0, (until - now).total_seconds())
    except (TypeError, ValueError):
        return 0.0


def _max_attempts(error: StoreUnavailable) -> float:
    if not error.was_reached:
        return MAX_ATTEMPTS_BEFORE_FIRST_ANSWER
    allowed = os.environ.get(ATTEMPTS_VARIABLE, "")
    return int(allowed) if allowed.isdecimal() else math.inf
