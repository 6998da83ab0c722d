"""Track how far the log of a pod has been read, and recognize lines that arrive again.

The server sends a log starting at a whole second, so lines arrive twice. Lines that a program writes to both stdout and
stderr may be slightly out of timestamp order. So lines of the last seconds are recognized by content.
"""

import re
from array import array
from collections import Counter, deque
from collections.abc import Sequence
from datetime import UTC, datetime

SECOND = 1_000_000_000
OVERLAP = SECOND
STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)")


def nanoseconds(stamp: str) -> int | None:
    """Return an RFC 3339 timestamp in nanoseconds since the epoch; None if it is not one."""
    if (match := STAMP.fullmatch(stamp)) is None:
        return None
    seconds = datetime.fromisoformat(match[1] + match[3].replace("Z", "+00:00")).timestamp()
    return int(seconds) * SECOND + int((match[2] or "0")[:9].ljust(9, "0"))


def rfc3339(time: int) -> str:
    whole = datetime.fromtimestamp(time // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{time % SECOND:09d}Z"


def time_of(line: bytes) -> int | None:
    return nanoseconds(line.partition(b" ")[0].decode(errors="replace"))


class LogPosition:
    def __init__(self, since: int = 0) -> None:
        self.time = since
        """Time of the line read last; initially that of the last line to skip.

        Lines may be newer, but after a jump of the node's clock the newest would skip those that follow.
        """
        self._since = since
        self._recent: deque[tuple[int, array[int]]] = deque()
        self._known: Counter[int] | None = None
        self._known_until = 0
        self._last_seen: int | None = None
        """Time of the last line, while the server has yet to repeat it."""

    @property
    def since_time(self) -> str | None:
        """Value of sinceTime for the next request; None to read from the beginning."""
        return rfc3339(max(self.time - OVERLAP, 0) // SECOND * SECOND) if self.time else None

    def expect_repeats(self, *, has_last_line: bool = False) -> None:
        """Filter the next lines: they may have been read before.

        Args:
            has_last_line: They are of the log that the last line was read from.
        """
        if not self.time:
            return
        self._last_seen = self.time if has_last_line else None
        self._known = Counter(known for _, lines in self._recent for known in lines)
        self._known_until = self.time + OVERLAP

    def forget(self) -> None:
        """Free the remembered lines once the log is over."""
        self._recent.clear()
        self._known = None

    def has_gap(self, lines: Sequence[bytes]) -> bool:
        """Return True if these are the first lines that are read again, and all are new: the log lost the last line."""
        first = next((time for line in lines if (time := time_of(line)) is not None), None)
        if first is None or self._last_seen is None:
            return False
        last_seen, self._last_seen = self._last_seen, None
        return first > last_seen and not any(self._is_known(line) for line in lines)

    def new_lines(self, lines: Sequence[bytes]) -> list[bytes]:
        """Return the lines that were not read before, and remember them."""
        fresh = list(lines) if self._known is None else [line for line in lines if self._is_new(line)]
        newest = next((time for line in reversed(fresh) if (time := time_of(line)) is not None), self.time)
        if fresh:
            self.time = newest
            self._recent.append((newest, array("q", map(hash, fresh))))
        while self._recent and self._recent[0][0] < newest - 2 * OVERLAP - SECOND:
            self._recent.popleft()
        if self._known is not None and newest > self._known_until:
            self._known = None
        return fresh

    def _is_known(self, line: bytes) -> bool:
        return self._known is not None and self._known[hash(line)] > 0

    def _is_new(self, line: bytes) -> bool:
        assert self._known is not None
        key = hash(line)
        if self._known[key] > 0:
            self._known[key] -= 1
            return False
        time = time_of(line) if self._since else None
        return time is None or time > self._since
