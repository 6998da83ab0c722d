"""The state of a job on a cluster is current, and derived at most once per change."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.annotations import PROGRESS_ANNOTATION
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import JobHandle, JobState
from kubetrain_components.jobs.kubernetes import api as kubernetes_api
from kubetrain_components.jobs.kubernetes import followed as followed_job
from kubetrain_components.jobs.kubernetes import watched
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.followed import FollowedJob
from kubetrain_components.jobs.troubles import TroubleKind
from support.api_server import PODS, ApiServer, hang

JOBS = "/apis/batch/v1/namespaces/tests/jobs"
EVENTS = "/api/v1/namespaces/tests/events"
QUEUES = "/apis/kueue.x-k8s.io/v1beta2/namespaces/tests/localqueues"
HANDLE = JobHandle(kind=JobKind.BATCH_JOB, name="j", uid="job")


def put_job(server: ApiServer, *conditions: str) -> None:
    status = {"active": 1, "conditions": [{"type": each, "status": "True"} for each in conditions]}
    server.put(f"{JOBS}/j", uid="job", kind="Job", spec={}, status=status)


def put_pod(server: ApiServer, phase: str) -> None:
    labels = {"kubetrain/role": "evaluation", "batch.kubernetes.io/job-name": "j"}
    metadata: dict[str, Any] = {"ownerReferences": [{"uid": "job"}], "labels": labels}
    spec = {"containers": [{"name": "main"}]}
    server.put(f"{PODS}/j-0", metadata=metadata, spec=spec, status={"phase": phase})


@pytest.fixture
def followed(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FollowedJob]:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    put_job(server)
    put_pod(server, "Pending")
    followed = FollowedJob(KubernetesApi.connect(retry_seconds=60), JOBS, HANDLE, lambda values: True)
    yield followed
    followed.stop()


def await_state(followed: FollowedJob, condition: Callable[[JobState | None], bool]) -> JobState | None:
    end = time.monotonic() + 60
    while not condition(state := followed.state()):
        assert time.monotonic() < end, state
        if state is not None:
            followed.await_change(state)
    return state


def test_the_state_is_derived_after_each_change_and_only_then(server: ApiServer, followed: FollowedJob) -> None:
    for phases, change in {
        ("Running", "Pending"): lambda: put_pod(server, "Running"),
        ("Running", "Running"): lambda: put_pod(server, "Succeeded"),
        ("Running", "Succeeded"): lambda: put_job(server, "Complete"),
        ("Succeeded", "Succeeded"): lambda: server.remove(f"{JOBS}/j"),
    }.items():
        state = await_state(followed, lambda state, now=phases: state and (state.phase, state.pods[0].phase) == now)
        assert followed.state() is state
        assert followed.is_over() == (phases == ("Succeeded", "Succeeded"))
        change()
    await_state(followed, lambda state: state is None)
    assert followed.is_over()


def test_progress_noted_on_the_job_is_in_its_state_without_looking_at_all_pods_again(
    server: ApiServer, followed: FollowedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def annotate(value: str) -> JobState | None:
        status, metadata = {"active": 1, "conditions": []}, {"annotations": {PROGRESS_ANNOTATION: value}}
        server.put(f"{JOBS}/j", uid="job", kind="Job", spec={}, status=status, metadata=metadata)
        return await_state(followed, lambda state: state and state.annotations == {PROGRESS_ANNOTATION: value})

    await_state(followed, lambda state: state and state.pods)
    before, derived = annotate("1"), []
    monkeypatch.setattr(followed, "_derive_state", lambda *unused: derived.append(1))
    state = annotate("2")
    assert before is not None and state is not None
    assert (state.pods, derived) == (before.pods, [])


def test_many_changes_are_taken_together_if_deriving_the_state_takes_long(
    server: ApiServer, followed: FollowedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    derived: list[int] = []
    derive = followed._derive_state

    def derive_slowly(*arguments: Any) -> JobState | None:
        derived.append(1)
        time.sleep(0.05)
        return derive(*arguments)

    monkeypatch.setattr(followed, "_derive_state", derive_slowly)
    began = time.monotonic()
    for _ in range(200):
        put_pod(server, "Running")
        time.sleep(0.002)
    put_pod(server, "Succeeded")
    await_state(followed, lambda state: state and state.pods and state.pods[0].phase == "Succeeded")
    assert len(derived) <= 2 + (time.monotonic() - began) / followed_job.MAX_PAUSE_SECONDS


def test_a_state_that_cannot_be_derived_is_an_error_each_time(
    server: ApiServer, followed: FollowedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*unused: object) -> JobState:
        raise ZeroDivisionError

    monkeypatch.setattr(followed, "_derive_state", fail)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            followed.state()


def test_waiting_for_a_change_that_has_already_come_returns_at_once(
    server: ApiServer, followed: FollowedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_pod(server, "Running")
    before = await_state(followed, lambda state: state and state.is_under_way)
    assert before is not None
    put_pod(server, "Succeeded")
    await_state(followed, lambda state: state is not before)
    monkeypatch.setattr(followed_job, "HEARTBEAT_SECONDS", 120.0)
    began = time.monotonic()
    followed.await_change(before)
    assert time.monotonic() - began < 60


def test_warnings_count_only_until_the_job_is_under_way(server: ApiServer, followed: FollowedJob) -> None:
    concerned = {"uid": server.objects[f"{PODS}/j-0"]["metadata"]["uid"]}
    server.put(f"{EVENTS}/e", reason="FailedMount", message="no such claim", involvedObject=concerned)
    state = await_state(followed, lambda state: state and state.troubles)
    assert state is not None
    assert [trouble.kind for trouble in state.troubles] == [TroubleKind.VOLUME]
    put_pod(server, "Running")
    await_state(followed, lambda state: state and not state.troubles)


def test_a_queue_is_watched_as_long_as_the_job_waits_in_it(server: ApiServer, followed: FollowedJob) -> None:
    def evidence(state: JobState | None) -> str:
        return state.troubles[0].evidence if state and state.troubles else ""

    labels = {"kueue.x-k8s.io/queue-name": "q"}
    server.put(f"{JOBS}/j", uid="job", kind="Job", metadata={"labels": labels}, spec={"suspend": True}, status={})
    await_state(followed, lambda state: "does not exist" in evidence(state))
    active = {"conditions": [{"type": "Active", "status": "True"}], "pendingWorkloads": 1}
    server.put(f"{QUEUES}/q", kind="LocalQueue", spec={"clusterQueue": "all"}, status=active)
    await_state(followed, lambda state: evidence(state) == "Kueue's queue q")
    server.remove(f"{QUEUES}/q")
    await_state(followed, lambda state: "does not exist" in evidence(state))
    server.put(f"{JOBS}/j", uid="job", kind="Job", metadata={"labels": labels}, spec={}, status={})
    put_pod(server, "Running")
    await_state(followed, lambda state: state and not state.troubles)


def test_a_queue_that_may_not_be_read_is_unknown(server: ApiServer, followed: FollowedJob) -> None:
    server.fail(QUEUES, lambda handler: bool(handler.refuse(403, "forbidden") or True), times=100)
    labels = {"kueue.x-k8s.io/queue-name": "q"}
    server.put(f"{JOBS}/j", uid="job", kind="Job", metadata={"labels": labels}, spec={"suspend": True}, status={})
    state = await_state(followed, lambda state: state and QUEUES in " ".join(server.requests))
    assert state is not None
    assert [trouble.kind for trouble in state.troubles] == [TroubleKind.QUEUE]


def test_the_state_may_be_outdated_while_the_api_server_does_not_answer(
    server: ApiServer, followed: FollowedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "CUT_OFF_SECONDS", 0.5)
    monkeypatch.setattr(kubernetes_api, "MAX_PAUSE_SECONDS", 0.1)
    await_state(followed, lambda state: not followed.is_cut_off)
    server.refuse()
    await_state(followed, lambda state: followed.is_cut_off)
    server.listen()
    await_state(followed, lambda state: not followed.is_cut_off)


def test_the_state_that_is_read_is_newer_than_a_watch_that_is_behind(server: ApiServer, followed: FollowedJob) -> None:
    await_state(followed, lambda state: state is not None)
    server.fail("watch=true", hang(60), times=10)
    server.cut_all()
    put_pod(server, "Running")
    state = followed.read()
    assert state is not None and state.is_under_way and state.is_after_gap
    server.remove(f"{JOBS}/j")
    assert followed.read() is None
