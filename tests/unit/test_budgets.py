"""How long a job may wait, start and run, and how long it tolerates each kind of trouble."""

from dataclasses import replace

import pytest

from kubetrain_components.jobs.budgets import Budgets, BudgetTracker, Failure
from kubetrain_components.jobs.job import JobHandle, JobState, Phase, PodState
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.troubles import Trouble, TroubleKind
from support.manifests import PLAIN, pytorch

QUEUED, STARTING, RUNNING, ENDING = (
    JobState(
        handle=JobHandle(kind=JobKind.PYTORCH_JOB, name="j", uid="1"),
        phase=phase,
        pods=(PodState(role="Worker", index=0, phase=pod_phase),),
    )
    for phase, pod_phase in [
        (Phase.SUSPENDED, Phase.PENDING),
        (Phase.PENDING, Phase.PENDING),
        (Phase.RUNNING, Phase.RUNNING),
        (Phase.SUCCEEDED, Phase.PENDING),
    ]
)
EACH_TEN = Budgets(queue_seconds=10, start_seconds=10, run_seconds=10)


class Watching:
    """A tracker whose clock the test sets."""

    def __init__(self, budgets: Budgets = Budgets()) -> None:  # noqa: B008 - it never changes
        self._now = 0.0
        self.tracker = BudgetTracker(budgets, lambda: self._now)

    def see(self, state: JobState, seconds: float) -> Failure | None:
        """Spend the seconds in the state."""
        self._now += seconds
        return self.tracker.exceeded(state)

    def reason(self, state: JobState, seconds: float) -> str | None:
        failure = self.see(state, seconds)
        return failure.reason if failure else None


def trouble(kind: TroubleKind, subject: str = "worker-0") -> Trouble:
    return Trouble(kind=kind, subject=subject, evidence="evidence")


def in_trouble(state: JobState, *kinds: TroubleKind) -> JobState:
    return replace(state, troubles=tuple(map(trouble, kinds)))


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (QUEUED, "waiting in the queue for 11 s, more than the 10 s allowed"),
        (STARTING, "starting for 11 s, more than the 10 s allowed"),
        (RUNNING, "running for 11 s, more than the 10 s allowed"),
    ],
)
def test_each_stage_has_a_budget_of_its_own(state: JobState, says: str) -> None:
    watching = Watching(EACH_TEN)
    assert watching.see(QUEUED, 9) is watching.see(STARTING, 9) is watching.see(RUNNING, 9) is None
    assert watching.see(state, 2) == Failure(says)


def test_time_in_a_queue_counts_for_no_other_budget_however_often_it_comes_back() -> None:
    watching = Watching(Budgets(start_seconds=10, run_seconds=10))
    for _ in range(3):
        assert watching.see(QUEUED, 1000) is watching.see(STARTING, 3) is watching.see(RUNNING, 3) is None
    assert watching.see(QUEUED, 1000) is None
    assert watching.reason(RUNNING, 2) == "running for 11 s, more than the 10 s allowed"


def test_a_queue_that_creates_no_pods_is_a_queue_too() -> None:
    watching = Watching(EACH_TEN)
    assert "waiting in the queue for 11 s" in str(watching.reason(in_trouble(STARTING, TroubleKind.QUEUE), 11))


def test_a_job_with_missing_pods_is_starting() -> None:
    assert "starting for 11 s" in str(Watching(EACH_TEN).reason(replace(RUNNING, missing=1), 11))


def test_without_a_budget_there_is_no_limit() -> None:
    watching = Watching()
    assert {watching.see(state, 1e6) for state in (QUEUED, STARTING, RUNNING)} == {None}


def test_the_budgets_are_the_placements() -> None:
    placement = replace(PLAIN, queue_seconds=1, start_seconds=2, deadline_seconds=3)
    assert Budgets.of(pytorch(placement)) == Budgets(queue_seconds=1, start_seconds=2, run_seconds=3)
    assert Budgets.of(pytorch()) == Budgets(queue_seconds=None, start_seconds=1800, run_seconds=None)


def test_an_exceeded_budget_is_explained_by_the_trouble_and_its_remedy() -> None:
    kind = TroubleKind.UNSCHEDULABLE
    failure = Watching(EACH_TEN).see(in_trouble(STARTING, kind), 11)
    assert failure == Failure(f"starting for 11 s, more than the 10 s allowed: {trouble(kind).failure}", kind)
    assert trouble(kind).failure == f"worker-0: {kind.value.words} (evidence): {kind.value.remedy}"


def test_an_exceeded_budget_is_explained_by_the_jobs_own_message() -> None:
    assert str(Watching(EACH_TEN).reason(replace(STARTING, message="told so"), 11)).endswith("allowed: told so")


def test_a_success_that_a_pod_has_no_part_in_fails_with_the_pods_name() -> None:
    watching = Watching()
    assert watching.see(ENDING, 120) is None
    reason = str(watching.reason(ENDING, 1))
    assert reason.startswith("ending for 121 s, more than the 120 s allowed: ")
    assert "worker-0 is still Pending" in reason


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        (TroubleKind.BAD_IMAGE_NAME, 0),
        (TroubleKind.INIT_CONTAINER, 10),
        (TroubleKind.POD_SECURITY, 10),
        (TroubleKind.REFUSED, 10),
        (TroubleKind.CONFIGURATION, 60),
        (TroubleKind.IMAGE_PULL, 120),
    ],
)
def test_trouble_that_rarely_goes_away_is_tolerated_for_a_while(kind: TroubleKind, seconds: float) -> None:
    watching, waiting = Watching(), in_trouble(STARTING, kind)
    assert watching.see(waiting, 5000) is watching.see(waiting, seconds) is None
    assert watching.see(waiting, 0.1) == Failure(trouble(kind).failure, kind)


def test_a_budget_overrides_the_timeout_of_a_trouble() -> None:
    budgets = Budgets(troubles={TroubleKind.IMAGE_PULL: 3, TroubleKind.QUOTA: 5})
    for kind, seconds in budgets.troubles.items():
        watching, waiting = Watching(budgets), in_trouble(STARTING, kind)
        assert watching.see(waiting, 0) is watching.see(waiting, seconds) is None
        assert watching.see(waiting, 0.1) is not None


def test_a_trouble_that_went_away_starts_again_from_zero() -> None:
    watching, waiting = Watching(), in_trouble(STARTING, TroubleKind.REFUSED)
    for state in (waiting, STARTING, waiting):
        assert watching.see(state, 9) is None
    assert watching.see(waiting, 9) is None
    assert watching.see(waiting, 9) is not None


@pytest.mark.parametrize(
    "kind",
    [
        TroubleKind.UNSCHEDULABLE,
        TroubleKind.CRASH_LOOP,
        TroubleKind.VOLUME,
        TroubleKind.QUOTA,
        TroubleKind.NOT_CREATED,
        TroubleKind.QUEUE,
        TroubleKind.NODE,
    ],
)
def test_trouble_that_may_go_away_is_tolerated_as_long_as_the_stage(kind: TroubleKind) -> None:
    watching, waiting = Watching(), in_trouble(STARTING, kind)
    assert watching.see(waiting, 0) is watching.see(waiting, 1e6) is None


@pytest.mark.parametrize("kind", TroubleKind)
def test_each_trouble_has_words_and_a_remedy_of_its_own(kind: TroubleKind) -> None:
    assert kind.value.words
    assert kind.value.remedy
    assert [other for other in TroubleKind if other.value.words == kind.value.words] == [kind]


def test_a_trouble_is_new_once_for_each_pod_that_has_it() -> None:
    tracker = Watching().tracker
    first, other = trouble(TroubleKind.QUOTA), trouble(TroubleKind.QUOTA, "worker-1")
    again = replace(first, evidence="the same in other words")
    seen = ((first,), (again, other), (other,), (other, again))
    reported = [tracker.new_troubles(replace(STARTING, troubles=each)) for each in seen]
    assert reported == [[first], [other], [], [again]], "and again when it comes back"
