"""The processes for which the others wait at each step: which, on which node, and what takes them longer."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median_low
from typing import Any

from kubetrain_trainer.reporting.own_time import StepTimes

LARGE_DELAY_SHARE = 0.2
"""A process is slow if its own part of a step takes longer than the median by this fraction of the step."""
WINDOW_SECONDS, WINDOWS = 4.0, 3
"""A delay is judged by its mean over a window of at least 4 s. What three windows in a row show is reported."""
MAX_NAMED = 8
REMEDIES = {
    "data": "compare the disk, network and CPU load of its node with those of others",
    "computation": "compare the GPU clocks and temperatures, and the CPU load, of its node with those of others",
}
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Delay:
    """How much longer than the median a process takes in a step before it waits for the others."""

    rank: int
    node: str
    part: str
    """The part that takes longer: data or computation."""
    seconds: float
    """The time of this part in a step."""
    median: float
    """The median of this time over all processes."""
    share: float
    """The delay as a fraction of the step."""

    @property
    def state(self) -> str:
        """The part that is slow, or an empty string."""
        return self.part if self.share >= LARGE_DELAY_SHARE else ""

    def __str__(self) -> str:
        return (
            f"rank {self.rank} on node {self.node} is slow: the others wait for it {self.share:.0%} of the time, "
            f"because its {self.part} takes {self.seconds:.3g} s per step (median {self.median:.3g} s): "
            f"{REMEDIES[self.part]}"
        )

    def to_dict(self) -> dict[str, Any]:
        return {"rank": self.rank, "node": self.node, "part": self.part, "delay_share": round(self.share, 4)}


def delays(times: Sequence[StepTimes], nodes: Sequence[str]) -> list[Delay]:
    """Return the delay of each process, by rank; none if a process has no new step."""
    if not all(process.steps for process in times):
        return []
    step = fmean(process.total / process.steps for process in times)
    parts = {"data": [process.data / process.steps for process in times]}
    if any(process.waiting for process in times):  # else it cannot be told apart from computing
        parts["computation"] = [(process.total - process.data - process.waiting) / process.steps for process in times]
    own = [sum(seconds) for seconds in zip(*parts.values(), strict=True)]
    medians = {part: median_low(seconds) for part, seconds in parts.items()}

    def delay(rank: int) -> Delay:
        part = max(parts, key=lambda part: parts[part][rank] - medians[part])
        share = (own[rank] - median_low(own)) / step
        return Delay(rank, nodes[rank], part, parts[part][rank], medians[part], share)

    return [delay(rank) for rank in range(len(times))]


def idle_share(times: Iterable[StepTimes]) -> float:
    """Return the fraction of time in which processes wait for data or for each other."""
    idle = sum(process.data + process.waiting for process in times)
    total = sum(process.total for process in times)
    return round(idle / total, 4) if total else 0.0


class Stragglers:
    """The processes that are slow for longer than by chance."""

    def __init__(self, nodes: Sequence[str]) -> None:
        """
        Args:
            nodes: The node of each process, by rank.
        """
        self._nodes = nodes
        self._window = [StepTimes()] * len(nodes)
        self._slow: dict[int, Delay] = {}
        self._doubts: dict[int, int] = {}
        """The number of windows in a row that contradict what is known of a process, by rank."""

    def note(self, times: Sequence[StepTimes]) -> None:
        """Judge the processes at the end of each window, and log which have become slow, or no longer are."""
        self._window = [one.plus(other) for one, other in zip(self._window, times, strict=True)]
        if self._window[0].total < WINDOW_SECONDS:
            return
        changed = [delay for delay in delays(self._window, self._nodes) if self._changes_known(delay)]
        self._window = [StepTimes()] * len(times)
        for delay in sorted(changed, key=lambda delay: -delay.share)[:MAX_NAMED]:
            if delay.state:
                log.warning("%s", delay)
            else:
                log.info("rank %d on node %s is no longer slow", delay.rank, delay.node)

    def lost_seconds(self, found: Iterable[Delay], times: Iterable[StepTimes]) -> float:
        """Return how long the others waited, in these delays, for a process that is known to compute slowly."""
        delayed = [delay.share for delay in found if delay.rank in self._slow and delay.part != "data"]
        return max(delayed, default=0.0) * max(process.total for process in times)

    def named(self) -> list[dict[str, Any]]:
        """Describe the slowest of them."""
        return [delay.to_dict() for delay in sorted(self._slow.values(), key=lambda delay: -delay.share)[:MAX_NAMED]]

    def _changes_known(self, delay: Delay) -> bool:
        """Return True if enough windows have contradicted what is known of this process, to replace it."""
        known = self._slow.get(delay.rank)
        is_known = delay.state == (known.state if known else "")
        doubts = 0 if is_known else self._doubts.get(delay.rank, 0) + 1
        is_news = doubts == WINDOWS
        self._doubts[delay.rank] = 0 if is_news else doubts
        if is_known or is_news:
            self._slow.pop(delay.rank, None)
            self._slow |= {delay.rank: delay} if delay.state else {}
        return is_news
