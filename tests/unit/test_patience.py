"""How long a job may wait, start and run, and how long each trouble is put up with."""

from dataclasses import replace

import pytest

from kubetrain_components.jobs.job import JobHandle, JobState, Phase, PodState, Trouble, TroubleKind
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.patience import REMEDIES, Budgets, Patience
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
    """A patience whose clock a test sets."""

    def __init__(self, budgets: Budgets = Budgets()) -> None:  # noqa: B008 - it never changes
        self._now = 0.0
        self.patience = Patience(budgets, lambda: self._now)

    def see(self, state: JobState, seconds: float) -> str | None:
        """The state for so long."""
        self._now += seconds
        return self.patience.exhausted_by(state)


def trouble(kind: TroubleKind, subject: str = "worker-0") -> Trouble:
    return Trouble(kind=kind, subject=subject, sentence=f"{subject}: {kind.value} (evidence)")


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
    assert watching.see(state, 2) == says


def test_time_in_a_queue_counts_for_no_other_budget_however_often_it_comes_back() -> None:
    watching = Watching(Budgets(start_seconds=10, run_seconds=10))
    for _ in range(3):
        assert watching.see(QUEUED, 1000) is watching.see(STARTING, 3) is watching.see(RUNNING, 3) is None
    assert watching.see(QUEUED, 1000) is None
    assert watching.see(RUNNING, 2) == "running for 11 s, more than the 10 s allowed"


def test_a_queue_that_creates_no_pods_is_a_queue_too() -> None:
    watching = Watching(EACH_TEN)
    assert "waiting in the queue for 11 s" in str(watching.see(in_trouble(STARTING, TroubleKind.QUEUE), 11))


def test_a_job_whose_pods_are_not_all_there_is_starting() -> None:
    assert "starting for 11 s" in str(Watching(EACH_TEN).see(replace(RUNNING, missing=1), 11))


def test_without_a_budget_there_is_no_end() -> None:
    watching = Watching()
    assert {watching.see(state, 1e6) for state in (QUEUED, STARTING, RUNNING)} == {None}


def test_the_budgets_are_the_placements() -> None:
    placement = replace(PLAIN, queue_seconds=1, start_seconds=2, deadline_seconds=3)
    assert Budgets.of(pytorch(placement)) == Budgets(queue_seconds=1, start_seconds=2, run_seconds=3)
    assert Budgets.of(pytorch()) == Budgets(queue_seconds=None, start_seconds=1800, run_seconds=None)


def test_an_exceeded_budget_is_explained_by_the_trouble_and_its_remedy() -> None:
    waiting = in_trouble(STARTING, TroubleKind.UNSCHEDULABLE)
    assert Watching(EACH_TEN).see(waiting, 11) == (
        "starting for 11 s, more than the 10 s allowed: worker-0: no node takes it (evidence): "
        "ask for less, or change node_selector, tolerations or the nodes"
    )


def test_a_success_that_a_pod_has_no_part_in_is_given_up_with_the_pods_name() -> None:
    watching = Watching()
    assert watching.see(ENDING, 120) is None
    assert watching.see(ENDING, 1) == (
        "ending for 121 s, more than the 120 s allowed: the job says that it succeeded, but worker-0 is Pending still"
    )


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
def test_what_hardly_passes_by_itself_is_put_up_with_for_a_while(kind: TroubleKind, seconds: float) -> None:
    watching, waiting = Watching(), in_trouble(STARTING, kind)
    assert watching.see(waiting, 5000) is watching.see(waiting, seconds) is None
    assert watching.see(waiting, 0.1) == f"worker-0: {kind.value} (evidence): {REMEDIES[kind]}"


def test_a_trouble_that_went_away_begins_anew() -> None:
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
def test_what_may_pass_is_put_up_with_as_long_as_the_stage_may_take(kind: TroubleKind) -> None:
    watching, waiting = Watching(), in_trouble(STARTING, kind)
    assert watching.see(waiting, 0) is watching.see(waiting, 1e6) is None


def test_every_trouble_has_a_remedy() -> None:
    assert set(REMEDIES) == set(TroubleKind)


def test_a_trouble_is_news_once_for_each_that_has_it() -> None:
    patience = Watching().patience
    first, other = trouble(TroubleKind.QUOTA), trouble(TroubleKind.QUOTA, "worker-1")
    again = replace(first, sentence="the same in other words")
    seen = ((first,), (again, other), (other,), (other, again))
    told = [list(patience.news(replace(STARTING, troubles=each))) for each in seen]
    assert told == [[first], [other], [], [again]], "and anew when it comes back"
