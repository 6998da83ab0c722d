"""Alarming lines of sampled pods: if hundreds write the same, the first ones are shown, and the others counted."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kubetrain_components.jobs.job_state import LogLine

MAX_SAME = 3
COUNT_SECONDS = 10.0
VARYING = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)
"""Parts of a line that differ between pods: times, ranks, addresses."""


@dataclass
class _Kind:
    """Lines that differ only in numbers."""

    until: float
    shown: int = 0
    more: int = 0
    last: LogLine | None = None


class Alarms:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}

    def accept(self, line: LogLine) -> bool:
        """Return True if the line must be shown; else count it."""
        kind = self._kinds.setdefault(VARYING.sub("#", line.text), _Kind(self._clock() + COUNT_SECONDS))
        if kind.shown < MAX_SAME:
            kind.shown += 1
            return True
        kind.more, kind.last = kind.more + 1, line
        return False

    def counted(self, *, is_end: bool = False) -> Iterator[LogLine]:
        """Yield a line for each kind of lines that were only counted for a while."""
        for key, kind in list(self._kinds.items()):
            if is_end or self._clock() >= kind.until:
                del self._kinds[key]
                if kind.last is not None:
                    yield LogLine(
                        kind.last.pod, f"{kind.last.text} (and {kind.more - 1} more such lines of other pods)"
                    )
