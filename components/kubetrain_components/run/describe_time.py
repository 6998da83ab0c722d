"""Describe what a training's time was spent on: in a summary of a few lines, and in tables of reports."""

from collections.abc import Iterator
from dataclasses import dataclass

from kubetrain_components.run.training_time import CAUSES, TrainingTime
from kubetrain_components.shown_values import describe_seconds

LOST = "lost"
MAX_LOSSES = 3
MIN_LOSS_SHARE, MIN_LOSS_SECONDS = 0.05, 10.0
"""Losses below either are not worth a line of the summary."""


@dataclass(frozen=True)
class TimeRow:
    meaning: str
    seconds: float
    percent: float
    percent_before: float
    """Percentage of the rows above it."""

    @property
    def duration(self) -> str:
        return f"{self.seconds:.1f} s" if self.seconds < 60 else describe_seconds(self.seconds)


def time_rows(time: TrainingTime) -> list[TimeRow]:
    rows: list[TimeRow] = []
    for cause, seconds in _in_order(time):
        above = sum(row.percent for row in rows)
        rows.append(TimeRow(CAUSES[cause].meaning, seconds, 100 * seconds / time.total, above))
    return rows


def describe_cost(time: TrainingTime) -> str:
    """Return the GPU-hours, or the CPU-hours if the known pods have no GPUs; empty if they request neither."""
    if time.gpu_hours:
        return f"{time.gpu_hours:.2f} GPU-hours"
    return f"{time.cpu_hours:.2f} CPU-hours" if time.cpu_hours else ""


def summarize_time(time: TrainingTime) -> Iterator[tuple[str, str]]:
    """Yield the cost, the share of the work, and the largest losses with the settings that reduce them."""
    if cost := describe_cost(time):
        yield "cost", cost
    if time.total:
        work = [(CAUSES[cause].meaning, each) for cause, each in _in_order(time) if CAUSES[cause].is_work]
        shares = " and ".join(f"{seconds / time.total:.0%} {meaning}" for meaning, seconds in work)
        yield "time", f"{describe_seconds(time.total)}, {shares or 'no training steps'}"
    for cause, seconds in _losses(time)[:MAX_LOSSES]:
        known = CAUSES[cause]
        remedy = f": {known.remedy}" if known.remedy else ""
        yield LOST, f"{describe_seconds(seconds)} ({seconds / time.total:.0%}), {known.meaning}{remedy}"


def account_of(time: TrainingTime) -> list[str]:
    """Return the summary as lines of text."""
    return [f"{name}: {value}" for name, value in summarize_time(time)]


def _losses(time: TrainingTime) -> list[tuple[str, float]]:
    smallest = max(MIN_LOSS_SHARE * time.total, MIN_LOSS_SECONDS)
    losses = [(cause, each) for cause, each in _in_order(time) if not CAUSES[cause].is_work and each >= smallest]
    return sorted(losses, key=lambda loss: -loss[1])


def _in_order(time: TrainingTime) -> list[tuple[str, float]]:
    """Return the seconds in the order of the causes, which JSON does not keep."""
    return [(cause, time.seconds[cause]) for cause in CAUSES if cause in time.seconds]
