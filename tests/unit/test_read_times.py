"""The times of a run's pods: of those on the cluster, and of those that a launcher saw before they were deleted."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_state import JobState, JobTimes
from kubetrain_components.jobs.kubernetes import pod_times, watched
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.kubernetes.pod_end import seconds
from support.api_server import PODS, ApiServer, stamp
from support.manifests import pytorch

TEN, ELEVEN = "2026-11-22T10:00:00Z", "2026-11-22T11:00:00Z"


@pytest.fixture
def backend(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesBackend]:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    monkeypatch.setattr(watched, "MIN_ROUND_SECONDS", 0.1)
    monkeypatch.setattr(pod_times, "READ_SECONDS", 0.1)
    with KubernetesBackend(KubernetesApi.connect(retry_seconds=60)) as backend:
        yield backend


def put_pod(server: ApiServer, job: Job, name: str, created: str, uid: str) -> None:
    labels = {
        **job.labels,
        job.kind.traits.job_name_label: job.identity.name,
        "training.kubeflow.org/replica-type": "master",
        "training.kubeflow.org/replica-index": "0",
    }
    server.put(
        f"{PODS}/{name}",
        metadata={
            "labels": labels,
            "creationTimestamp": created,
            "ownerReferences": [{"uid": uid}],
        },
        spec={"containers": [{"name": job.kind.traits.container, "resources": {"requests": {"cpu": "2"}}}]},
        status={"phase": "Running"},
    )


def await_pod(states: Iterator[JobState | None]) -> None:
    next(state for state in states if state is not None and state.pods)


def created(backend: KubernetesBackend, job: Job) -> dict[float, bool]:
    """Return when each pod was created, and whether it has ended."""
    return {pod.created: bool(pod.ended) for pod in backend.times(job).pods}


def test_all_attempts_count_with_the_pods_that_the_launcher_has_seen_deleted(
    server: ApiServer, backend: KubernetesBackend
) -> None:
    first = pytorch()
    second = replace(first, identity=first.identity.next_attempt())
    handle = backend.create(first)
    states = backend.watch(handle)
    put_pod(server, first, "taken", TEN, handle.uid)
    await_pod(states)
    server.remove(f"{PODS}/taken")
    next(state for state in states if state is not None and state.pods[0].phase.is_final)
    handle = backend.create(second)
    next(backend.watch(handle))
    put_pod(server, second, "new", ELEVEN, handle.uid)
    assert created(backend, first) == {seconds(TEN): True, seconds(ELEVEN): False}
    assert backend.times(first).created == seconds(stamp(0))
    with KubernetesBackend(KubernetesApi.connect()) as restarted:
        assert created(restarted, first) == {seconds(ELEVEN): False}, "a restarted launcher cannot know the other"


def test_a_run_with_a_similar_id_does_not_count(server: ApiServer, backend: KubernetesBackend) -> None:
    other = replace(pytorch(), identity=replace(pytorch().identity, run_id="run-7"))
    jobs = "/apis/kubeflow.org/v1/namespaces/tests/pytorchjobs"
    server.put(f"{jobs}/of-another-run", metadata={"labels": other.labels})
    put_pod(server, other, "of-another-run", TEN, "uid")
    assert backend.times(pytorch()) == JobTimes()


def test_times_that_cannot_be_read_are_those_that_were_seen(server: ApiServer, backend: KubernetesBackend) -> None:
    handle = backend.create(pytorch())
    put_pod(server, pytorch(), "seen", TEN, handle.uid)
    await_pod(backend.watch(handle))
    server.refuse()
    assert [pod.cpus for pod in backend.times(pytorch()).pods] == [2]
