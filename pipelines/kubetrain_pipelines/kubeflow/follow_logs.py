"""The new lines of logs that grow.

The Kubernetes API sends what was written since a time. Kubeflow Pipelines sends only whole logs, so they are asked for
less often as they grow.
"""

import time
from collections.abc import Iterator

from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.log_routes import KfpLogs
from kubetrain_pipelines.kubeflow.run import Run
from kubetrain_pipelines.kubeflow.stage_state import StageState
from kubetrain_pipelines.kubeflow.step_logs import ClusterLogs

PAUSE_FACTOR = 9
"""The pause after reading a whole log, in terms of the time this took: a tenth of the time is spent on it."""
BYTES_PER_SECOND = 1e6
MAX_PAUSE_SECONDS = 60.0
TAIL_LINES = 50
ROTATED = "[kubetrain] the log was rotated: lines may be missing here"


class FollowedLogs:
    def __init__(self, api: KfpApi, run: Run) -> None:
        self._kfp = KfpLogs(api, run)
        self._cluster = ClusterLogs(api, run.id)
        self._tails: dict[str, Tail] = {}
        self._done: set[str] = set()
        self._costs: dict[str, float] = {}

    @property
    def pause_seconds(self) -> float:
        """The pause before the next look, so that whole logs cause little load."""
        return min(max(self._costs.values(), default=0.0), MAX_PAUSE_SECONDS)

    def new_lines(self, stage: StageState, *, is_over: bool) -> Iterator[tuple[str, list[str]]]:
        """Yield the nodes of a stage that wrote something since the last call, and what they wrote.

        Args:
            is_over: Whether the logs are complete, even without a line break at their end.
        """
        for node in stage.attempts:
            if node not in self._done and (lines := self._read(node, is_over=is_over)):
                yield node, lines
        if is_over:
            self._done.update(stage.attempts)
            for node in stage.attempts:
                self._costs.pop(node, None)

    def _read(self, node: str, *, is_over: bool) -> list[str]:
        tail = self._tails.setdefault(node, Tail())
        if node not in self._costs:
            lines = self._cluster.new_lines(node, is_over=is_over)
            if lines is not None:
                return tail.remember(lines)
            if self._cluster.is_connected and not is_over:
                return []
        started = time.monotonic()
        text = self._kfp.read(node)
        seconds = time.monotonic() - started
        if text is None:
            return []
        self._costs[node] = max(PAUSE_FACTOR * seconds, len(text) / BYTES_PER_SECOND)
        return tail.new_lines(text, is_over=is_over)


class Tail:
    """The end of what was printed of a log. It shows where to continue in a log that lost its beginning."""

    def __init__(self) -> None:
        self._last: list[str] = []
        self._count = 0

    def new_lines(self, text: str, *, is_over: bool) -> list[str]:
        *lines, rest = text.split("\n")
        lines += [rest] if rest and is_over else []
        end = self._end_in(lines)
        self._count = len(lines)
        if end is None:
            return [ROTATED, *self.remember(lines)]
        return self.remember(lines[end:])

    def remember(self, lines: list[str]) -> list[str]:
        self._last = [*self._last, *lines][-TAIL_LINES:]
        return lines

    def _end_in(self, lines: list[str]) -> int | None:
        """Return the number of lines that were printed; None if the log has none of the last ones any more."""
        last = self._last
        if lines[self._count - len(last) : self._count] == last:
            return self._count
        ends = range(len(lines), 0, -1)
        return next((end for end in ends if lines[max(end - len(last), 0) : end] == last[-end:]), None)
