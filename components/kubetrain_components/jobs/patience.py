"""How long a job may be in each of its stages, and in each kind of trouble, before it is given up.

Time in a queue, at the start and at work count apart: waiting for admission is nobody's slowness.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from kubetrain_components.jobs.job import Job, JobState, Phase, Trouble, TroubleKind

Clock = Callable[[], float]

SECONDS = {
    TroubleKind.IMAGE_PULL: 120.0,  # a registry may be down for a moment
    TroubleKind.BAD_IMAGE_NAME: 0.0,
    TroubleKind.CONFIGURATION: 60.0,  # a secret may be on its way
    TroubleKind.INIT_CONTAINER: 10.0,
    TroubleKind.POD_SECURITY: 10.0,
    TroubleKind.REFUSED: 10.0,
}
"""By kind of trouble; any other may take as long as the stage that the job is in: autoscalers make nodes, quota is
given back, and crashes are counted as restarts."""
LAGGARD_SECONDS = 120.0
"""For pods that have not ended when the job says that it succeeded."""
REMEDIES = {
    TroubleKind.UNSCHEDULABLE: "ask for less, or change node_selector, tolerations or the nodes",
    TroubleKind.IMAGE_PULL: "correct image, or give the secrets to pull it with (image_pull_secrets)",
    TroubleKind.BAD_IMAGE_NAME: "correct image",
    TroubleKind.CONFIGURATION: "make what is missing in this namespace, or correct its name",
    TroubleKind.CRASH_LOOP: "look at its last lines",
    TroubleKind.VOLUME: "see that what it mounts exists, is bound, and can be mounted on that node",
    TroubleKind.INIT_CONTAINER: "apply deploy/operator, or set min_workers to workers: then there is no Master",
    TroubleKind.POD_SECURITY: "host_network, rdma and some volumes need a namespace that enforces less",
    TroubleKind.REFUSED: "correct what it names",
    TroubleKind.NOT_CREATED: "look at the cluster's admission webhooks and its operator",
    TroubleKind.QUOTA: "wait until other jobs have ended, or have the quota raised",
    TroubleKind.QUEUE: "see that it exists in this namespace, has room, and that its system manages jobs of this kind",
    TroubleKind.NODE: "bring the node back, or delete it from the cluster: until then nothing takes the pod's place",
}


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """How long a job may be in each of its stages; None: as long as it takes."""

    queue_seconds: float | None = None
    """Waiting for a queue to admit it."""
    start_seconds: float | None = None
    """Until every pod runs."""
    run_seconds: float | None = None
    troubles: Mapping[TroubleKind, float] = field(default_factory=lambda: SECONDS)
    """How long each kind of trouble is put up with; one that is not named, as long as its stage."""

    @classmethod
    def of(cls, job: Job) -> Self:
        placement = job.placement
        return cls(
            queue_seconds=placement.queue_seconds or None,
            start_seconds=placement.start_seconds,
            run_seconds=placement.deadline_seconds or None,
        )


class Patience:
    def __init__(self, budgets: Budgets, clock: Clock = time.monotonic) -> None:
        self._limits = {
            "waiting in the queue": budgets.queue_seconds,
            "starting": budgets.start_seconds,
            "running": budgets.run_seconds,
            "ending": LAGGARD_SECONDS,
        }
        self._spent = dict.fromkeys(self._limits, 0.0)
        self._troubles = budgets.troubles
        self._since: dict[tuple[TroubleKind, str], float] = {}
        self._told: set[tuple[TroubleKind, str]] = set()
        self._clock = clock
        self._last = clock()

    def news(self, state: JobState) -> Iterator[Trouble]:
        """Trouble that has not been told yet, or went away since."""
        present = {(trouble.kind, trouble.subject): trouble for trouble in state.troubles}
        yield from (trouble for key, trouble in present.items() if key not in self._told)
        self._told = set(present)

    def exhausted_by(self, state: JobState) -> str | None:
        """Why the job is to be given up now; None: it is not."""
        now = self._clock()
        since, self._since = self._since, {}
        for trouble in state.troubles:
            key = (trouble.kind, trouble.subject)
            self._since[key] = since.get(key, now)
            if now - self._since[key] > self._troubles.get(trouble.kind, float("inf")):
                return with_remedy(trouble)
        return self._exceeded(state, now)

    def _exceeded(self, state: JobState, now: float) -> str | None:
        stage = _stage_of(state)
        self._spent[stage] += now - self._last
        self._last = now
        limit = self._limits[stage]
        if limit is None or self._spent[stage] <= limit:
            return None
        reason = f"{stage} for {self._spent[stage]:.0f} s, more than the {limit:.0f} s allowed"
        return f"{reason}: {evidence}" if (evidence := _evidence(state)) else reason


def _evidence(state: JobState) -> str:
    if state.troubles:
        return with_remedy(state.troubles[0])
    if state.phase is Phase.SUCCEEDED:
        laggards = [f"{pod.name} is {pod.phase} still" for pod in state.pods if not pod.phase.is_final]
        return f"the job says that it succeeded, but {', '.join(laggards)}"
    return state.message


def with_remedy(trouble: Trouble) -> str:
    return f"{trouble.sentence}: {REMEDIES[trouble.kind]}"


def _stage_of(state: JobState) -> str:
    if state.phase is Phase.SUSPENDED or any(trouble.kind is TroubleKind.QUEUE for trouble in state.troubles):
        return "waiting in the queue"
    if state.phase is Phase.SUCCEEDED:
        return "ending"
    return "running" if state.is_under_way else "starting"
