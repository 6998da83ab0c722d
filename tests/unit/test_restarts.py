"""Which restarts count: those of the training itself, until it makes progress."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import JobHandle, JobState, Phase, PodState
from kubetrain_components.jobs.restarts import HEADWAY_SECONDS, RestartCounter, step_of

PODS = 4


class Training:
    """A job of four pods whose states a test changes."""

    def __init__(self, needed: int = PODS) -> None:
        self.needed = needed
        self.now = 0.0
        self.counter = RestartCounter(lambda: self.now)
        self.pods = [PodState(role="Worker", index=index, phase=Phase.RUNNING) for index in range(PODS)]
        self.progress = ""
        self.count()

    def count(self) -> int:
        handle = JobHandle(kind=JobKind.PYTORCH_JOB, name="j", uid="1")
        state = JobState(handle=handle, phase=Phase.RUNNING, pods=tuple(self.pods), needed=self.needed)
        return self.counter.count(state, self.progress)

    def change(self, index: int, **changes: object) -> None:
        self.pods[index] = replace(self.pods[index], **changes)
        self.count()

    def restart(self, *indices: int) -> None:
        for index in indices:
            self.change(index, restarts=self.pods[index].restarts + 1)

    def lose(self, index: int) -> None:
        self.change(index, is_lost=True)

    def replace(self, index: int) -> None:
        pod = self.pods[index]
        self.change(index, is_lost=False, restarts=pod.restarts + 1, replacements=pod.replacements + 1)

    def reach(self, step: int, seconds: float = 10.0) -> None:
        self.now += seconds
        self.progress = f"[kubetrain] step={step}/1000000 loss=0.5"
        self.count()


@pytest.fixture
def training() -> Training:
    return Training()


def test_each_restart_of_a_pod_counts(training: Training) -> None:
    training.restart(0, 1, 1)
    assert training.count() == 3


def test_restarts_before_the_launcher_looked_do_not_count() -> None:
    training = Training()
    training.pods[0] = replace(training.pods[0], restarts=7)
    training.counter = RestartCounter(lambda: 0.0)
    assert training.count() == 0


@pytest.mark.parametrize("order", ["before", "while", "after"])
def test_neither_a_preempted_pod_nor_the_ends_of_the_others_count(training: Training, order: str) -> None:
    for step in range(1, 200):
        training.reach(step)
        if order == "before":
            training.restart(1, 2, 3)
        training.lose(0)
        if order == "while":
            training.restart(1, 2, 3)
        training.replace(0)
        if order == "after":
            training.restart(1, 2, 3)
    assert training.count() == 0


def test_others_that_restart_again_and_again_while_a_node_is_lost_do_not_count(training: Training) -> None:
    training.lose(0)
    for _ in range(100):
        training.restart(1, 2, 3)
    assert training.count() == 0


def test_an_elastic_training_that_crashes_while_it_waits_for_a_pod_still_ends() -> None:
    training = Training(needed=2)
    training.lose(3)
    for _ in range(10):
        training.restart(0, 1, 2)
    assert training.count() == 30 - PODS, "one restart of each pod belongs to the loss"
    training.replace(3)
    assert training.count() == 30 - PODS


def test_others_that_cannot_meet_without_the_first_pod_restart_for_nothing() -> None:
    training = Training(needed=2)
    training.lose(0)
    for _ in range(10):
        training.restart(1, 2, 3)
    assert training.count() == 0


def test_each_loss_of_an_elastic_training_excuses_the_restarts_that_follow() -> None:
    training = Training(needed=2)
    for step in range(1, 20):
        training.reach(step)
        for lost in (0, 1):
            training.lose(lost)
            training.restart(2, 3)
        training.replace(0)
        training.replace(1)
    assert training.count() == 0


def test_a_training_that_crashes_after_a_disruption_still_ends(training: Training) -> None:
    training.lose(0)
    training.replace(0)
    for _ in range(10):
        training.restart(*range(PODS))
    assert training.count() == 9 * PODS, "one restart of each pod belongs to the disruption"


def test_new_steps_for_a_while_forgive_restarts(training: Training) -> None:
    training.reach(100)
    training.restart(*range(PODS))
    training.reach(50)
    training.reach(101)
    assert training.count() == PODS
    training.reach(150, HEADWAY_SECONDS - 1)
    assert training.count() == PODS
    training.reach(151, 1)
    assert training.count() == 0
    training.restart(0)
    assert training.count() == 1


def test_time_before_a_disruption_forgives_nothing(training: Training) -> None:
    training.reach(100)
    training.restart(*range(PODS))
    training.reach(101)
    training.lose(0)
    training.replace(0)
    training.reach(102, HEADWAY_SECONDS)
    assert training.count() == PODS
    training.reach(103, HEADWAY_SECONDS)
    assert training.count() == 0


def test_steps_that_were_reached_before_forgive_nothing(training: Training) -> None:
    training.reach(1000)
    for attempt in range(5):
        training.restart(*range(PODS))
        for step in range(900, 1001, 10):
            training.reach(step, HEADWAY_SECONDS)
        assert training.count() == (attempt + 1) * PODS


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, PODS - 1), st.sampled_from(["before", "while", "after"])), max_size=30))
def test_no_series_of_disruptions_counts(incidents: list[tuple[int, str]]) -> None:
    training = Training()
    for step, (lost, order) in enumerate(incidents):
        others = [index for index in range(PODS) if index != lost]
        training.reach(step)
        for moment in ("before", "while", "after"):
            if moment == "while":
                training.lose(lost)
            if moment == order:
                training.restart(*others)
        training.replace(lost)
    assert training.count() <= PODS - 1


@pytest.mark.parametrize(
    ("line", "step"),
    [("[kubetrain] step=7/90 loss=1", 7), ("[kubetrain] step=7", 7), ("[kubetrain] samples=3/4", -1), ("", -1)],
)
def test_the_step_of_a_line(line: str, step: int) -> None:
    assert step_of(line) == step
