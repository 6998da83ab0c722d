"""Limit the time that a job may stay in each stage, and in each kind of trouble, before it fails.

Queued, starting and running time is counted separately: a job that waits for admission is not slow.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from kubetrain_components.jobs.job import Job, JobState, Phase
from kubetrain_components.jobs.troubles import Trouble, TroubleKind

Clock = Callable[[], float]

ENDING_TIMEOUT_SECONDS = 120.0
"""Timeout for pods that are still running when the job reports success."""


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """Seconds that a job may spend in each stage; None: no limit."""

    queue_seconds: float | None = None
    start_seconds: float | None = None
    """Time until every pod is running."""
    run_seconds: float | None = None
    troubles: Mapping[TroubleKind, float] = field(default_factory=dict)
    """Timeouts that override the ones in TroubleKind."""

    @classmethod
    def of(cls, job: Job) -> Self:
        placement = job.placement
        return cls(
            queue_seconds=placement.queue_seconds or None,
            start_seconds=placement.start_seconds,
            run_seconds=placement.deadline_seconds or None,
        )


@dataclass(frozen=True)
class Failure:
    """The reason to fail a job, and the kind of trouble behind it, if any."""

    reason: str
    trouble: TroubleKind | None = None


class BudgetTracker:
    """The time that a job has spent in each stage and in each trouble."""

    def __init__(self, budgets: Budgets, clock: Clock = time.monotonic) -> None:
        self._limits = {
            "waiting in the queue": budgets.queue_seconds,
            "starting": budgets.start_seconds,
            "running": budgets.run_seconds,
            "ending": ENDING_TIMEOUT_SECONDS,
        }
        self._spent = dict.fromkeys(self._limits, 0.0)
        self._timeouts = {kind: kind.value.timeout_seconds for kind in TroubleKind} | dict(budgets.troubles)
        self._since: dict[tuple[TroubleKind, str], float] = {}
        self._reported: set[tuple[TroubleKind, str]] = set()
        self._clock = clock
        self._last = clock()

    def new_troubles(self, state: JobState) -> list[Trouble]:
        """Return the troubles that the previous state did not have."""
        present = {(trouble.kind, trouble.subject): trouble for trouble in state.troubles}
        reported, self._reported = self._reported, set(present)
        return [trouble for key, trouble in present.items() if key not in reported]

    def exceeded(self, state: JobState) -> Failure | None:
        """Add the time since the last call to the stage of this state. Return a failure if a limit is exceeded."""
        now = self._clock()
        since, self._since = self._since, {}
        for trouble in state.troubles:
            key = (trouble.kind, trouble.subject)
            self._since[key] = since.get(key, now)
            timeout = self._timeouts[trouble.kind]
            if timeout is not None and now - self._since[key] > timeout:
                return Failure(trouble.failure, trouble.kind)
        return self._exceeded_stage(state, now)

    def _exceeded_stage(self, state: JobState, now: float) -> Failure | None:
        stage = _stage_of(state)
        self._spent[stage] += now - self._last
        self._last = now
        limit = self._limits[stage]
        if limit is None or self._spent[stage] <= limit:
            return None
        reason = f"{stage} for {self._spent[stage]:.0f} s, more than the {limit:.0f} s allowed"
        cause = _cause(state)
        return Failure(f"{reason}: {cause.reason}" if cause.reason else reason, cause.trouble)


def _cause(state: JobState) -> Failure:
    if state.troubles:
        return Failure(state.troubles[0].failure, state.troubles[0].kind)
    if state.phase is Phase.SUCCEEDED:
        unfinished = [f"{pod.name} is still {pod.phase}" for pod in state.pods if not pod.phase.is_final]
        return Failure(f"the job reports success, but {', '.join(unfinished)}")
    return Failure(state.message)


def _stage_of(state: JobState) -> str:
    if state.phase is Phase.SUSPENDED or any(trouble.kind is TroubleKind.QUEUE for trouble in state.troubles):
        return "waiting in the queue"
    if state.phase is Phase.SUCCEEDED:
        return "ending"
    return "running" if state.is_under_way else "starting"
