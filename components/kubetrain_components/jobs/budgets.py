"""Limit the time that a job may stay in each stage, and in each kind of trouble, before it fails.

Queued, starting and running time is counted separately: a job that waits for admission is not slow. Once the job is
under way, the time that it waited is forgotten: a pod that is replaced later has the whole time again. So is the time
that it was ending, if it did not end.
"""

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from kubetrain_components.jobs.annotations import PROGRESS_ANNOTATION, SECONDS_RUNNING_ANNOTATION
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_state import JobState, Phase
from kubetrain_components.jobs.troubles import JOB, TroubleKind
from kubetrain_trainer.some_of import some_of

Clock = Callable[[], float]

ENDING_TIMEOUT_SECONDS = 120.0
"""Timeout for pods or containers that still run when the job reports success or its main containers have ended."""
QUEUE, START, RUN, END = "waiting in the queue", "starting", "running", "ending"
HOPELESS = "in a queue that does not admit it as it is"
IN_QUEUE = (TroubleKind.QUEUE, TroubleKind.NEVER_ADMITTED)


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """Seconds that a job may spend in each stage; None: no limit."""

    queue_seconds: float | None = None
    start_seconds: float | None = None
    """Time until the job is under way, at first and each time that it lost pods."""
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
    pod: str = ""
    """The pod that made the job fail, if one did."""
    avoid_nodes: tuple[str, ...] = ()
    """Nodes without which another attempt may succeed."""
    is_disruption: bool = False
    """True if another attempt may succeed because the cluster took the pod."""


class BudgetTracker:
    """The time that a job has spent in each stage and in each trouble."""

    def __init__(self, budgets: Budgets, clock: Clock) -> None:
        self._limits = {
            QUEUE: budgets.queue_seconds,
            HOPELESS: budgets.start_seconds,
            START: budgets.start_seconds,
            RUN: budgets.run_seconds,
            END: ENDING_TIMEOUT_SECONDS,
        }
        self._spent = dict.fromkeys(self._limits, 0.0)
        self._timeouts = {kind: kind.value.timeout_seconds for kind in TroubleKind} | dict(budgets.troubles)
        self._since: dict[tuple[TroubleKind, str], float] = {}
        self._was_under_way = False
        self._is_admissible = False
        """True once a queue had admitted the job, or would have if it had been empty: it may do so again."""
        self._waits_for_volume = False
        self._clock = clock
        self._last = clock()
        self._watched = 0.0
        """Seconds in which the job was watched: what happened in between is unknown."""
        self._is_first = True

    def exceeded(self, state: JobState) -> Failure | None:
        """Add the time since the last call to the stage of this state. Return a failure if a limit is exceeded."""
        elapsed = self._seconds_watched(state)
        self._take_over(state)
        # An earlier launcher saw a step: all pods have run.
        self._was_under_way |= state.is_under_way or PROGRESS_ANNOTATION in state.annotations
        self._is_admissible |= self._can_be_admitted(state)
        stage = self._stage_of(state)
        self._spent[stage] += elapsed
        if state.is_under_way:
            self._spent[QUEUE] = self._spent[START] = 0.0
        for passing in {END, HOPELESS} - {stage}:
            self._spent[passing] = 0.0
        return self._exceeded_trouble(state) or self._exceeded_stage(state, stage)

    @property
    def seconds_running(self) -> float:
        return self._spent[RUN]

    def _seconds_watched(self, state: JobState) -> float:
        last, self._last = self._last, self._clock()
        elapsed = 0.0 if state.is_after_gap else self._last - last
        self._watched += elapsed
        return elapsed

    def _take_over(self, state: JobState) -> None:
        """Continue the count of an earlier launcher."""
        if self._is_first:
            self._spent[RUN] += _seconds(state.annotations.get(SECONDS_RUNNING_ANNOTATION, ""))
        self._is_first = False

    def _exceeded_trouble(self, state: JobState) -> Failure | None:
        since, self._since, now = self._since, {}, self._watched
        for trouble in state.troubles:
            key = (trouble.kind, trouble.subject)
            self._since[key] = since.get(key, now)
            timeout = self._timeouts[trouble.kind]
            # Once the job was under way, its spec is right: a registry or a webhook is down for a while.
            if timeout is not None and not self._was_under_way and now - self._since[key] > timeout:
                return Failure(trouble.failure, trouble.kind)
        return None

    def _exceeded_stage(self, state: JobState, stage: str) -> Failure | None:
        limit = self._limits[stage]
        if limit is None or self._spent[stage] <= limit:
            return None
        reason = f"{stage} for {self._spent[stage]:.0f} s, more than the {limit:.0f} s allowed"
        cause = _cause(state, stage)
        return Failure(f"{reason}: {cause.reason}" if cause.reason else reason, cause.trouble)

    def _stage_of(self, state: JobState) -> str:
        if state.is_ending:
            return END
        kinds = {trouble.kind for trouble in state.troubles}
        # Someone may pause a job that runs. A job that is suspended from the start and in no queue never runs.
        is_paused = state.phase is Phase.SUSPENDED and (TroubleKind.SUSPENDED not in kinds or self._was_under_way)
        # The event that tells who uses a volume is forgotten after an hour; later ones only say that it is not mounted.
        was_in_use = self._waits_for_volume and TroubleKind.VOLUME in kinds
        self._waits_for_volume = was_in_use or TroubleKind.VOLUME_IN_USE in kinds
        if state.is_under_way and not is_paused:  # pods of an elastic job that join later may wait for anything
            return RUN
        if TroubleKind.NEVER_ADMITTED in kinds and not self._is_admissible:
            return HOPELESS
        return QUEUE if is_paused or self._waits_for_volume or not kinds.isdisjoint(IN_QUEUE) else START

    def _can_be_admitted(self, state: JobState) -> bool:
        """Return True if the queue has admitted the job, or says that it has room for it."""
        in_queue = [trouble for trouble in state.troubles if trouble.kind in IN_QUEUE]
        is_possible = any(item.kind is TroubleKind.QUEUE and item.subject != JOB for item in in_queue)
        return is_possible or not in_queue or self._was_under_way


def _seconds(text: str) -> float:
    """Read a number of seconds; one that cannot be read, because someone changed it, counts as 0."""
    with contextlib.suppress(ValueError):
        return seconds if math.isfinite(seconds := float(text)) else 0.0
    return 0.0


def _cause(state: JobState, stage: str) -> Failure:
    if state.troubles:
        return Failure(state.troubles[0].failure, state.troubles[0].kind)
    unfinished = some_of([f"{pod.name} is still {pod.phase}" for pod in state.pods if not pod.phase.is_final])
    if state.phase is Phase.SUCCEEDED:
        return Failure(f"the job reports success, but {unfinished}")
    if state.is_ending:
        return Failure("all pods have ended, but the job does not report it")
    return Failure(state.message or (unfinished if stage == START else ""))
