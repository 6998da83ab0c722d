"""The account of a training: the time from its first job's creation to its end, by cause, and what it cost.

Time                                             | cause
from the job's creation until its pods get nodes | queue
then until their containers have started         | image
then until the trainer has taken its first step  | start
while the trainer runs                           | what the trainer reports; without a report, program
from its last report until containers run again  | preemption if a pod was taken, else restart; unknown without pods
then until the next report begins                | start
from its last report to the end of its pods      | end

Each second has one cause. Time about which nothing is known is unknown.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from kubetrain_components.jobs.job_state import JobTimes, PodTimes
from kubetrain_components.shown_values import describe_seconds
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.own_time import SHORTER_WAITS
from kubetrain_trainer.reporting.time_spent import (
    CHECKPOINT,
    DATA_WAIT,
    END,
    REPEATED,
    START,
    STRAGGLER,
    TRAINING,
    VALIDATION,
    summarize,
)

LOST = "lost"
MAX_LOSSES = 3
MIN_LOSS_SHARE, MIN_LOSS_SECONDS = 0.05, 10.0
"""Losses below either are not worth a line of the summary."""

QUEUE, IMAGE, PROGRAM, RESTART, PREEMPTION, UNKNOWN = "queue", "image", "program", "restart", "preemption", "unknown"

ROUNDING_SECONDS = 2.0
"""Kubernetes' times have whole seconds, so a pod may seem to end before its last report."""
GRACE_SECONDS = 30.0
"""Time in which a deleted pod must end by default. Of some pods, only the end of this time is known."""
HOUR = 3600.0

Span = tuple[float, float]


@dataclass(frozen=True)
class Cause:
    meaning: str
    remedy: str = ""
    is_work: bool = False


CAUSES = {
    QUEUE: Cause(
        "waiting in a queue or for nodes",
        "request fewer pods.workers or pods.gpus, or set another pods.queue, or priorityClassName of pods.pod",
    ),
    IMAGE: Cause("pulling images and starting containers", "use a smaller image, and leave out imagePullPolicy"),
    START: Cause("starting the program, until its first step", "leave train.compile out of short trainings"),
    TRAINING: Cause("training steps", is_work=True),
    PROGRAM: Cause("running your program", is_work=True),
    DATA_WAIT: Cause("waiting for data", SHORTER_WAITS),
    STRAGGLER: Cause("waiting for a process that computes slowly", "see the log for its node, and replace that node"),
    CHECKPOINT: Cause("waiting for checkpoints", "raise train.checkpoint_every"),
    VALIDATION: Cause("validation", "raise train.validate_every"),
    REPEATED: Cause("steps repeated after a restart", "lower train.checkpoint_every"),
    RESTART: Cause("restarts after failures", "see the log for their causes"),
    PREEMPTION: Cause("preemptions and evictions", "set priorityClassName of pods.pod, or leave pods.spot empty"),
    END: Cause("writing the model and ending the pods"),
    UNKNOWN: Cause("unknown"),
}


@dataclass(frozen=True)
class TrainingTime:
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds by cause, without causes that took no time."""
    gpu_hours: float = 0.0
    """Hours for which the known pods held GPUs, times the number of GPUs."""
    cpu_hours: float = 0.0
    """The same for the CPUs that they requested."""

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def to_json(self) -> dict[str, Any]:
        return {"seconds": dict(self.seconds), "gpu_hours": self.gpu_hours, "cpu_hours": self.cpu_hours}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "TrainingTime":
        return cls(**value)


def training_time(times: JobTimes, spent: Mapping[str, Any]) -> TrainingTime:
    """
    Args:
        spent: The trainer's summary of its own time; empty: there is none.
    """
    runs = _reported_runs(spent) if spent else _runs_of(times.pods)
    if not runs:
        return TrainingTime()
    (first, _), (_, last) = runs[0], runs[-1]
    ended = max([last, *(pod.ended for pod in times.pods)])
    parts = [
        _in_runs(runs, spent),
        _before((min(times.created or first, first), first), times.pods),
        *(_between(gap, times.pods) for gap in _gaps(runs)),
        {END: ended - last},
    ]
    held = [(pod, (pod.ended or ended) - pod.scheduled) for pod in times.pods if pod.scheduled]
    return TrainingTime(
        {cause: total for cause in CAUSES if (total := round(sum(part.get(cause, 0.0) for part in parts), 3))},
        round(sum(pod.gpus * max(seconds, 0.0) for pod, seconds in held) / HOUR, 4),
        round(sum(pod.cpus * max(seconds, 0.0) for pod, seconds in held) / HOUR, 4),
    )


def reported_time(training: Mapping[str, Any], output: TrainingOutput | None) -> TrainingTime:
    """Return the account in the training's result or, without one, what the trainer has written in its output."""
    if "time" in training:
        return TrainingTime.from_json(training["time"])
    return training_time(JobTimes(), summarize(output.time_spent)) if output else TrainingTime()


def _reported_runs(spent: Mapping[str, Any]) -> list[Span]:
    """Return when the trainer ran. Of many short gaps between its starts, the summary has only the sum."""
    ends = [spent["began"], *(moment for gap in spent["gaps"] for moment in gap), spent["ended"]]
    return list(zip(ends[::2], ends[1::2], strict=True))


def _runs_of(pods: Iterable[PodTimes]) -> list[Span]:
    """Return when containers ran, from the moment when all of the first pods had started."""
    started = [pod for pod in pods if pod.started or pod.scheduled]
    last = max((max(pod.started, pod.scheduled, pod.ended) for pod in started), default=0.0)
    spans = sorted((pod.started or pod.scheduled, pod.ended or last) for pod in started)
    runs: list[Span] = []
    for span in spans:
        overlapping = runs.pop() if runs and span[0] <= runs[-1][1] else span
        runs.append((overlapping[0], max(overlapping[1], span[1])))
    if runs:
        together = max(pod.started or pod.scheduled for pod in started if pod.created <= spans[0][0])
        runs[0] = (min(together, runs[0][1]), runs[0][1])
    return runs


def _gaps(runs: Sequence[Span]) -> list[Span]:
    return [(before[1], after[0]) for before, after in pairwise(runs)]


def _in_runs(runs: Sequence[Span], spent: Mapping[str, Any]) -> dict[str, float]:
    if not spent:
        return {PROGRAM: sum(ended - began for began, ended in runs)}
    known = {cause: seconds for cause, seconds in spent["seconds"].items() if cause in CAUSES}
    # The rest is that of causes which a newer trainer may have, and of the gaps that the summary leaves out.
    gaps = sum(ended - began for began, ended in _gaps(runs))
    return {**known, UNKNOWN: max(sum(spent["seconds"].values()) - sum(known.values()) - gaps, 0.0)}


def _before(gap: Span, pods: Sequence[PodTimes]) -> dict[str, float]:
    """Return the time before the first run."""
    began, ended = gap
    scheduled = _last_within(gap, (pod.scheduled for pod in pods))
    if not scheduled:
        return {UNKNOWN: ended - began}
    started = _last_within((scheduled, ended), (pod.started for pod in pods))
    if not started:
        return {QUEUE: scheduled - began, UNKNOWN: ended - scheduled}
    restarted = _last_within((started, ended), (item for pod in pods for item in pod.restarted)) or started
    waits = {QUEUE: scheduled - began, IMAGE: started - scheduled, RESTART: restarted - started}
    return {**waits, START: ended - restarted}


def _between(gap: Span, pods: Sequence[PodTimes]) -> dict[str, float]:
    """Return the time between two runs."""
    began, ended = gap
    starts = [start for pod in pods for start in (pod.started, *pod.restarted) if began < start <= ended]
    up = max(starts, default=ended)
    return {_cause(gap, pods): up - began, START: ended - up}


def _cause(gap: Span, pods: Iterable[PodTimes]) -> str:
    """Return why the training did not run: because of the pods that ended then, or whose container restarted."""
    began, ended = gap[0] - ROUNDING_SECONDS, gap[1]
    involved = [pod for pod in pods if pod.created < ended and (not pod.ended or pod.ended >= began)]
    if any(pod.was_disrupted and 0 < pod.ended <= ended + GRACE_SECONDS for pod in involved):
        return PREEMPTION
    return RESTART if any(pod.created < gap[0] for pod in involved) else UNKNOWN


def _last_within(span: Span, moments: Iterable[float]) -> float:
    """Return the last known of the moments until the end of the span, but not before its beginning; 0 if there is none.

    Later ones are those of pods that join late, or restart later.
    """
    last = max((moment for moment in moments if moment <= span[1]), default=0.0)
    return max(last, span[0]) if last else 0.0


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
