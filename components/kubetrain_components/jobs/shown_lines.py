"""Show lines in a thread of its own, because the loop that owns the job must not wait for their reader."""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Iterator

from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_components.jobs.job_logs import OnLine
from kubetrain_components.jobs.job_state import LogLine

MAX_LINES = 1000
STUCK_SECONDS = 5.0
"""Time that one line takes if no one reads, as in a terminal after Ctrl-S."""
LAST_LINES_SECONDS = 1.0
"""Time for the last lines of a launcher that is interrupted."""
log = logging.getLogger(__name__)


class ShownLines(threading.Thread):
    """A queue of lines, and the thread that shows them. Calling it never blocks."""

    def __init__(self, on_line: OnLine, lead: str) -> None:
        super().__init__(name="shown lines", daemon=True)
        self._on_line, self._lead = on_line, lead
        self.lines: queue.SimpleQueue[LogLine | None] = queue.SimpleQueue()
        self._dropped, self._taken_at, self._has_failed = 0, 0.0, False

    def __call__(self, line: LogLine) -> None:
        if dropped := self._dropped:
            self._dropped = 0
            self.lines.put(LogLine(self._lead, f"warning: {dropped} lines not shown, because the output was not read"))
        self.lines.put(line)

    def offer(self, line: LogLine) -> None:
        """Show one of many lines: wait for a slow reader, but drop the line if no one reads."""
        while self.lines.qsize() >= MAX_LINES:
            if time.monotonic() - self._taken_at > STUCK_SECONDS:
                self._dropped += 1
                return
            time.sleep(0.01)
        self(line)

    def run(self) -> None:
        while (line := self.lines.get()) is not None:
            self._taken_at = time.monotonic()
            try:
                self._on_line(line)
            except Exception as error:  # noqa: BLE001 - a full disk or a closed stdout ends no job
                if not self._has_failed:
                    log.warning("cannot show the job's log (%s: %s); the job continues", type(error).__name__, error)
                self._has_failed = True


@contextlib.contextmanager
def shown_apart(on_line: OnLine, lead: str) -> Iterator[ShownLines]:
    """Yield a function that shows lines without waiting for them. After the block, they have been shown."""
    shown, seconds = ShownLines(on_line, lead), None
    try:
        with interrupts_deferred():  # a thread whose start is interrupted never runs
            shown.start()
        yield shown
    except (KeyboardInterrupt, SystemExit):
        seconds = LAST_LINES_SECONDS
        raise
    finally:
        shown.lines.put(None)
        if shown.is_alive():
            shown.join(seconds)
