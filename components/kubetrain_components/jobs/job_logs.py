"""The logs of a job's pods, passed on while the job runs. The last lines of each pod are kept for the verdict."""

import logging
import os
import re
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator

from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.verdict import KEPT_LINES
from kubetrain_trainer.reporting.progress_line import parse_progress

OnLine = Callable[[LogLine], None]
log = logging.getLogger(__name__)
MAX_FOLLOWED_PODS = 32
ALARMING = re.compile(r"^waiting: |error|exception|traceback|fatal|killed|failed", re.IGNORECASE)


def is_large(job: Job) -> bool:
    """Return True if the job has too many pods to follow each of them over a connection of its own."""
    return job.max_pods > MAX_FOLLOWED_PODS


def is_alarming(text: str) -> bool:
    return ALARMING.search(text) is not None


def important_lines(lead: str, on_line: OnLine) -> OnLine:
    """Return a function that passes on all lines of the lead pod, and only alarming ones of the other pods."""

    def pass_on(line: LogLine) -> None:
        if line.pod == lead or is_alarming(line.text):
            on_line(line)

    return pass_on


def print_line(line: LogLine) -> None:
    """Print a line to stdout; if stdout is closed (`| head`), print nothing from then on."""
    try:
        _write(f"[{line.pod}] {line.text}\n")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        log.warning("stdout is closed, so the log is not shown any more; the job continues")


def _write(text: str) -> None:
    """Write in one piece, because several threads show lines, and past the lock of sys.stdout: a thread whose output
    is not read would keep it, and no signal interrupts those that wait for it."""
    stdout = sys.__stdout__
    if stdout is None or sys.stdout is not stdout:  # as in a notebook
        print(text, end="", flush=True)
        return
    left = text.encode(stdout.encoding, "backslashreplace")
    while left:
        left = left[os.write(stdout.fileno(), left) :]


class JobLogs:
    def __init__(
        self, lines: Iterator[LogLine], show: OnLine, offer: OnLine, lead: str, *, lead_changes: bool = False
    ) -> None:
        """
        Args:
            show: Shows what the launcher says, without waiting for a reader.
            offer: Shows a line of a pod; it may wait.
            lead_changes: True if another pod gets rank 0, and reports the progress, when the lead pod is lost.
        """
        self.progress = ""
        """Newest progress line of rank 0."""
        self._lead, self._lead_changes = lead, lead_changes
        self._lines = lines
        self._show, self._offer = show, offer
        self._tails: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=KEPT_LINES))
        self._thread = threading.Thread(target=self._pass_on_all, daemon=True)
        with interrupts_deferred():  # a thread whose start is interrupted never runs
            self._thread.start()

    def pass_on(self, line: LogLine) -> None:
        """Show what the launcher says of a pod."""
        self._take(line, self._show)

    def tell(self, sentence: str) -> None:
        """Show a sentence of the launcher, which no pod's tail has."""
        self._show(LogLine(self._lead, sentence))

    def _take(self, line: LogLine, show: OnLine) -> None:
        self._tails[line.pod].append(line.text)
        if (line.pod == self._lead or self._lead_changes) and parse_progress(line.text) is not None:
            self.progress = line.text
        if not line.is_hidden:
            show(line)

    def drain(self, seconds: float) -> None:
        """Wait for the last lines, at most this long."""
        self._thread.join(seconds)

    def tail(self, pod: str) -> list[str]:
        """Return the last lines of a pod so far."""
        return list(self._tails.get(pod, ()))

    def _pass_on_all(self) -> None:
        try:
            for line in self._lines:
                self._take(line, self._offer)
        except Exception as error:  # noqa: BLE001 - a log that cannot be read is not a verdict
            log.warning("cannot read the job's log (%s: %s); the job continues", type(error).__name__, error)
