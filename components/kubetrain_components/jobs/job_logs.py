"""The log of a job's pods, passed on while the job runs; the last lines of each pod are kept for the verdict."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator

from kubetrain_components.jobs.job import LogLine
from kubetrain_components.jobs.verdict import TAIL_LINES

OnLine = Callable[[LogLine], None]


class JobLogs:
    def __init__(self, lines: Iterator[LogLine], on_line: OnLine) -> None:
        self._lines = lines
        self._on_line = on_line
        self._tails: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=TAIL_LINES))
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._pass_on_all, daemon=True)
        self._thread.start()

    def pass_on(self, line: LogLine) -> None:
        self._tails[line.pod].append(line.text)
        self._on_line(line)

    def drain(self, seconds: float) -> None:
        """Wait for the last lines, and no longer; raises what kept lines from being passed on."""
        self._thread.join(seconds)
        if self._error is not None:
            raise self._error

    def tails(self) -> dict[str, list[str]]:
        """By pod; lines may still come in meanwhile."""
        return {pod: list(lines) for pod, lines in self._tails.copy().items()}

    def _pass_on_all(self) -> None:
        try:
            for line in self._lines:
                self.pass_on(line)
        except Exception as error:  # noqa: BLE001 - raised by drain(), in the thread that can act on it
            self._error = error
