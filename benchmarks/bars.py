"""The targets of `kubetrain sync`: ratios to peers in the same run, and a few absolute figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peers import OURS, RCLONE, S5CMD, TEXTBOOK
from rounds import Outcome
from scenarios import (
    CPU_PER_GIGABYTE,
    CPU_PER_OBJECT,
    CPU_SECONDS,
    MEGABYTES_PER_SECOND,
    OBJECTS_PER_SECOND,
    PEAK_MEGABYTES,
)


@dataclass(frozen=True)
class Bar:
    scenario: str
    figure: str
    is_floor: bool
    limit: float
    """The limit of the figure itself, or of its ratio to the peer's."""
    peer: str = ""

    @property
    def text(self) -> str:
        bound = "at least" if self.is_floor else "at most"
        return f"{self.figure} {bound} {self._limit}"

    @property
    def _limit(self) -> str:
        if not self.peer or self.limit == 1:
            return f"{self.peer}'s" if self.peer else f"{self.limit:g}"
        return f"{self.limit:g} times {self.peer}'s" if self.limit > 1 else f"1/{1 / self.limit:.0f} of {self.peer}'s"


@dataclass(frozen=True)
class Verdict:
    bar: Bar
    measured: float | None
    has_failed: bool
    """kubetrain failed, so it misses the target."""

    @property
    def is_met(self) -> bool | None:
        """None if unknown: the peer is not installed, or it failed."""
        if self.measured is None:
            return False if self.has_failed else None
        return self.measured >= self.bar.limit if self.bar.is_floor else self.measured <= self.bar.limit


BARS = (
    Bar("small", OBJECTS_PER_SECOND, True, 6, TEXTBOOK),
    Bar("small", CPU_PER_OBJECT, False, 1 / 6, TEXTBOOK),
    Bar("small", CPU_PER_OBJECT, False, 1, S5CMD),
    Bar("small", CPU_PER_OBJECT, False, 1, RCLONE),
    Bar("crc", OBJECTS_PER_SECOND, True, 6, TEXTBOOK),
    Bar("crc", CPU_PER_OBJECT, False, 1 / 7, TEXTBOOK),
    Bar("crc", CPU_PER_OBJECT, False, 1, S5CMD),
    Bar("crc", CPU_PER_OBJECT, False, 1, RCLONE),
    Bar("large", MEGABYTES_PER_SECOND, True, 1, TEXTBOOK),
    Bar("large", CPU_PER_GIGABYTE, False, 1 / 2, TEXTBOOK),
    Bar("large-crc", MEGABYTES_PER_SECOND, True, 1, TEXTBOOK),
    Bar("large-crc", CPU_PER_GIGABYTE, False, 1 / 2, TEXTBOOK),
    Bar("listing", CPU_SECONDS, False, 12),
    Bar("listing", PEAK_MEGABYTES, False, 300),
    Bar("latency", OBJECTS_PER_SECOND, True, 900),
    Bar("mixed", OBJECTS_PER_SECOND, True, 500),
    Bar("late-body", OBJECTS_PER_SECOND, True, 500),
)


def judge(outcomes: Sequence[Outcome]) -> list[Verdict]:
    """Return the verdict on every target of the scenarios that ran."""
    figures = {(each.scenario.name, each.tool): each.figures for each in outcomes}
    failed = {each.scenario.name: bool(each.problem) for each in outcomes if each.tool == OURS}
    return [Verdict(bar, _measured(bar, figures), failed[bar.scenario]) for bar in BARS if bar.scenario in failed]


def _measured(bar: Bar, figures: Mapping[tuple[str, str], Mapping[str, float]]) -> float | None:
    ours = figures[bar.scenario, OURS].get(bar.figure)
    if not bar.peer or ours is None:
        return ours
    peers = figures[bar.scenario, bar.peer].get(bar.figure)
    return None if peers is None else ours / peers
