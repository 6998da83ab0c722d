"""How long a job may wait, start and run, and how long it tolerates each kind of trouble."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubetrain_components.jobs.annotations import PROGRESS_ANNOTATION, SECONDS_RUNNING_ANNOTATION
from kubetrain_components.jobs.budgets import Budgets, BudgetTracker, Failure
from kubetrain_components.jobs.job import Elastic
from kubetrain_components.jobs.job_kinds import REPLICA_INDEX_LABEL, REPLICA_TYPE_LABEL, JobKind
from kubetrain_components.jobs.job_state import JobHandle, JobState, Phase, PodState
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import job_manifest
from kubetrain_components.jobs.kubernetes.state import job_state
from kubetrain_components.jobs.troubles import Trouble, TroubleKind
from support.manifests import PLAIN, elastic, pytorch

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
EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
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
        (STARTING, "starting for 11 s, more than the 10 s allowed: worker-0 is still Pending"),
        (RUNNING, "running for 11 s, more than the 10 s allowed"),
    ],
)
def test_each_stage_has_a_budget_of_its_own(state: JobState, says: str) -> None:
    watching = Watching(EACH_TEN)
    assert watching.see(RUNNING, 9) is watching.see(QUEUED, 9) is watching.see(STARTING, 9) is None
    assert watching.see(state, 2) == Failure(says)


def test_time_in_a_queue_counts_for_no_other_budget_however_often_it_comes_back() -> None:
    watching = Watching(Budgets(start_seconds=10, run_seconds=10))
    for _ in range(3):
        assert watching.see(QUEUED, 1000) is watching.see(STARTING, 9) is watching.see(RUNNING, 3) is None
    assert watching.see(QUEUED, 1000) is None
    assert watching.reason(RUNNING, 2) == "running for 11 s, more than the 10 s allowed"


@pytest.mark.parametrize("state", [QUEUED, STARTING])
def test_time_before_the_job_was_under_way_is_forgotten(state: JobState) -> None:
    watching = Watching(Budgets(queue_seconds=10, start_seconds=10))
    for _ in range(50):
        assert watching.see(state, 9) is watching.see(RUNNING, 1) is None
    assert watching.see(state, 9) is None
    assert "for 11 s, more than the 10 s" in str(watching.reason(state, 2)), "this episode is too long"


@pytest.mark.parametrize("state", [QUEUED, STARTING, RUNNING, ENDING])
def test_time_in_which_nothing_is_known_of_the_job_counts_for_no_budget(state: JobState) -> None:
    watching = Watching(EACH_TEN)
    ill = in_trouble(state, TroubleKind.CONFIGURATION)
    assert watching.see(ill, 1) is watching.see(replace(ill, is_after_gap=True), 86400) is watching.see(ill, 1) is None
    assert watching.see(ill, 200) is not None


def test_a_queue_that_creates_no_pods_is_a_queue_too() -> None:
    watching = Watching(EACH_TEN)
    assert "waiting in the queue for 11 s" in str(watching.reason(in_trouble(STARTING, TroubleKind.QUEUE), 11))


def in_queue(kind: TroubleKind, subject: str = "the job") -> JobState:
    return replace(QUEUED, troubles=(Trouble(kind=kind, subject=subject, evidence="queue q"),))


def test_a_queue_that_never_admits_the_job_has_only_the_time_to_start() -> None:
    watching = Watching(Budgets(start_seconds=10, queue_seconds=100))
    unexplained, hopeless = in_queue(TroubleKind.QUEUE), in_queue(TroubleKind.NEVER_ADMITTED)
    assert watching.see(unexplained, 50) is watching.see(hopeless, 9) is None
    assert watching.see(unexplained, 1) is watching.see(hopeless, 9) is None, "the queue changed in between"
    assert "does not admit it as it is for 11 s, more than the 10 s" in str(watching.reason(hopeless, 2))


EXPLAINED = in_queue(TroubleKind.QUEUE, "the job's Workload")


@pytest.mark.parametrize("earlier", [RUNNING, STARTING, EXPLAINED])
def test_a_queue_that_had_room_for_the_job_may_admit_it_again(earlier: JobState) -> None:
    watching = Watching(Budgets(start_seconds=10, queue_seconds=100))
    assert watching.see(earlier, 1) is watching.see(in_queue(TroubleKind.NEVER_ADMITTED), 90) is None


def test_a_volume_of_another_run_is_a_queue_even_after_its_event_is_forgotten() -> None:
    watching = Watching(Budgets(start_seconds=10))
    for kind in (TroubleKind.VOLUME_IN_USE, TroubleKind.VOLUME, TroubleKind.VOLUME):
        assert watching.see(in_trouble(STARTING, kind), 1000) is None
    assert watching.see(STARTING, 9) is None
    assert "starting for" in str(watching.reason(in_trouble(STARTING, TroubleKind.VOLUME), 9))


def test_a_job_with_missing_pods_is_starting() -> None:
    assert "starting for 11 s" in str(Watching(EACH_TEN).reason(replace(RUNNING, needed=2), 11))


def test_a_job_is_paused_by_a_person_but_never_starts_if_it_is_suspended_without_a_queue() -> None:
    suspended = in_trouble(QUEUED, TroubleKind.SUSPENDED)
    assert "starting for 11 s" in str(Watching(Budgets(start_seconds=10)).reason(suspended, 11))
    watching = Watching(Budgets(start_seconds=10))
    assert watching.see(RUNNING, 1) is watching.see(suspended, 1e6) is None


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


def test_pods_that_have_all_succeeded_end_a_job_that_does_not_report_it() -> None:
    ended = replace(RUNNING, pods=tuple(replace(pod, phase=Phase.SUCCEEDED) for pod in RUNNING.pods))
    watching = Watching()
    assert watching.see(ended, 120) is None
    assert "all pods have ended, but the job does not report it" in str(watching.reason(ended, 1))


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


@pytest.mark.parametrize("kind", [kind for kind in TroubleKind if kind.value.timeout_seconds is not None])
@pytest.mark.parametrize("is_reattached", [False, True])
def test_a_job_that_was_under_way_waits_for_a_registry_as_for_a_node(kind: TroubleKind, is_reattached: bool) -> None:
    watching, waiting = Watching(Budgets(start_seconds=1800)), in_trouble(STARTING, kind)
    if is_reattached:
        waiting = replace(waiting, annotations={PROGRESS_ANNOTATION: "[kubetrain] step=3/9"})
    else:
        assert watching.see(RUNNING, 5 * 86400) is None
    assert watching.see(waiting, 1) is watching.see(waiting, 1790) is None
    assert watching.see(waiting, 10) == Failure(
        f"starting for 1801 s, more than the 1800 s allowed: {trouble(kind).failure}", kind
    )


def test_a_restarted_launcher_continues_the_count_of_the_deadline() -> None:
    watching = Watching(EACH_TEN)
    found = replace(RUNNING, annotations={SECONDS_RUNNING_ANNOTATION: "9"})
    assert watching.see(found, 1) is None
    assert "running for 11 s" in str(watching.reason(found, 1))
    assert watching.tracker.seconds_running == 11


@pytest.mark.parametrize("unreadable", ["", "9 s", "nan"])
def test_a_count_of_an_earlier_launcher_that_cannot_be_read_is_0(unreadable: str) -> None:
    watching = Watching(EACH_TEN)
    assert watching.see(replace(RUNNING, annotations={SECONDS_RUNNING_ANNOTATION: unreadable}), 1) is None
    assert watching.tracker.seconds_running == 1


class TestManifests:
    """Budgets over the states of real manifests, with a clock that the test sets."""

    @pytest.mark.parametrize("minimum", [2, 3])
    def test_an_elastic_job_is_under_way_with_its_min_workers(self, minimum: int) -> None:
        watching = Watching(Budgets(start_seconds=1800))
        state = elastic_state("Running", "Running", "Running", "Pending", minimum=minimum)
        assert state.is_under_way
        assert watching.see(state, 86400) is watching.see(state, 86400) is None
        assert [each.kind for each in state.troubles] == [TroubleKind.UNSCHEDULABLE]

    def test_an_elastic_job_without_its_first_pod_is_starting(self) -> None:
        watching = Watching(Budgets(start_seconds=1800))
        without_first = elastic_state("Pending", "Running", "Running", minimum=2)
        assert not without_first.is_under_way
        assert watching.see(without_first, 1800) is None
        assert "worker-0: cannot be scheduled" in str(watching.reason(without_first, 1))

    @pytest.mark.parametrize("kind", [TroubleKind.VOLUME_IN_USE, TroubleKind.QUEUE])
    def test_a_training_uses_its_time_while_more_pods_wait_to_join(self, kind: TroubleKind) -> None:
        watching = Watching(Budgets(run_seconds=100))
        grows = elastic_state("Running", "Running", "Pending", minimum=2)
        grows = replace(grows, troubles=(replace(trouble(kind), subject="worker-2"),))
        assert watching.see(grows, 100) is None
        assert "running for 101 s" in str(watching.reason(grows, 1))

    def test_an_elastic_job_below_its_min_workers_is_starting(self) -> None:
        watching = Watching(Budgets(start_seconds=1800))
        too_few = elastic_state("Running", "Pending", "Pending", minimum=2)
        assert watching.see(elastic_state("Running", "Running", "Pending", minimum=2), 86400) is None
        assert watching.see(too_few, 1800) is None
        assert "starting for 1801 s" in str(watching.reason(too_few, 1))

    @settings(max_examples=60, deadline=None)
    @given(
        waits=st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1799)), max_size=40),
        minimum=st.integers(1, 4),
    )
    def test_no_series_of_replaced_pods_ends_a_job_that_comes_back_in_time(
        self, waits: list[tuple[int, float]], minimum: int
    ) -> None:
        watching = Watching(Budgets(start_seconds=1800))
        whole = elastic_state(*["Running"] * 4, minimum=minimum)
        assert watching.see(whole, 60) is None
        for lost, seconds in waits:
            phases = ["Pending" if index == lost else "Running" for index in range(4)]
            assert watching.see(elastic_state(*phases, minimum=minimum), 0) is None
            assert watching.see(elastic_state(*phases, minimum=minimum), seconds) is None
            assert watching.see(whole, 1) is None

    @pytest.mark.parametrize("conditions", [[EVICTED], []], ids=["evicted", "deleted by a person"])
    def test_pods_whose_sidecars_use_their_grace_periods_do_not_add_up(self, conditions: list[dict[str, str]]) -> None:
        watching = Watching()
        whole, leaving = elastic_state("Running", "Running", minimum=2), leaving_state(conditions)
        assert leaving.pods[0].lingering, "its main container has ended, its sidecar has not"
        for _ in range(5):
            assert watching.see(whole, 86400) is watching.see(leaving, 1) is watching.see(leaving, 30) is None

    @pytest.mark.parametrize("code", [143, 0])
    @pytest.mark.parametrize("others", [1, 0])
    @pytest.mark.parametrize("conditions", [[EVICTED], []], ids=["evicted", "deleted by a person"])
    def test_a_pod_that_is_deleted_may_use_a_long_grace_period(
        self, conditions: list[dict[str, str]], others: int, code: int
    ) -> None:
        watching, leaving = Watching(), leaving_state(conditions, others=others, code=code)
        assert not leaving.is_ending
        assert watching.see(leaving, 0) is watching.see(leaving, 600) is None

    @pytest.mark.parametrize("end", ["finalizer", "lost node", "evicted and gone"])
    def test_a_pod_that_nothing_ends_does_not_use_a_grace_period(self, end: str) -> None:
        conditions = [EVICTED] if end == "evicted and gone" else []
        watching, stuck = Watching(), leaving_state(conditions, others=0, code=0, end=end)
        assert stuck.is_ending
        assert watching.see(stuck, 0) is None
        assert "ending for 600 s" in str(watching.reason(stuck, 600)), "its proof then decides"


def leaving_state(conditions: list[dict[str, str]], *, others: int = 1, code: int = 143, end: str = "") -> JobState:
    """Return a job with a pod that is being deleted: only its sidecar still runs.

    Args:
        end: What keeps the pod from ending: a finalizer, a lost node; or that it is gone.
    """
    ended = {"exitCode": code, "reason": "Error", "finishedAt": "2026-11-22T00:00:30Z"}
    statuses = [
        {"name": "pytorch", "state": {"terminated": ended}},
        {"name": "vault-agent", "state": {"running": {}}},
    ]
    leaving, *rest = (pod_manifest(index, "Running") for index in range(1 + others))
    leaving["metadata"]["deletionTimestamp"] = "2026-11-22T00:01:00Z"
    leaving["status"] |= {"containerStatuses": statuses, "conditions": conditions}
    if end == "finalizer":
        leaving["status"] |= {"phase": "Succeeded", "containerStatuses": statuses[:1]}
    if end == "lost node":
        leaving["spec"]["nodeName"] = "node2"
        leaving["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    leaving["deleted"] = end == "evicted and gone"
    return state_of([leaving, *rest], minimum=1 + others)


def elastic_state(*phases: str, minimum: int) -> JobState:
    return state_of([pod_manifest(*each) for each in enumerate(phases)], minimum=minimum)


def state_of(pods: list[dict[str, Any]], *, minimum: int) -> JobState:
    job = elastic(elastic=Elastic(min_replicas=minimum, max_replicas=len(pods)))
    made = job_manifest(replace(job, replicas=(replace(job.replicas[0], count=len(pods)),)))
    made["metadata"]["uid"] = "job"
    made["status"] = {"conditions": [{"type": "Running", "status": "True"}]}
    return job_state(JobKind.PYTORCH_JOB, made, pods)


def pod_manifest(index: int, phase: str) -> dict[str, Any]:
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "no node takes it"}
    return {
        "metadata": {
            "name": f"j-worker-{index}",
            "uid": f"pod-{index}",
            "creationTimestamp": "2026-11-22T00:00:00Z",
            "labels": {REPLICA_TYPE_LABEL: "worker", REPLICA_INDEX_LABEL: str(index)},
            "ownerReferences": [{"uid": "job"}],
        },
        "spec": {"containers": [{"name": "pytorch"}]},
        "status": {"phase": phase, "conditions": [unscheduled] if phase == "Pending" else []},
    }
