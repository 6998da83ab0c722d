"""Elastic trainings on a real cluster that grow while they train: a pod that had no room at first joins the others."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from kubetrain_components.jobs.follow import create_or_attach
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.kubernetes.state import replica_name
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.launch_training.training_job import TrainingJob
from support.cluster import Bucket, await_that, real_nodes
from support.training_cluster import Cluster

pytestmark = pytest.mark.cluster
CPU_METRIC = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
}


class Seats:
    """A resource of the node of which only a test's own pods request one unit each."""

    def __init__(self, name: str) -> None:
        self.name = f"example.com/{name}"
        self._api = KubernetesApi.connect()
        self._node = f"/api/v1/nodes/{real_nodes(self._api)[0]}"

    def offer(self, count: int) -> None:
        self._advertise(str(count))

    def remove(self) -> None:
        self._advertise(None)

    def _advertise(self, count: str | None) -> None:
        amount = {self.name: count}
        self._api.patch(f"{self._node}/status", {"status": {"capacity": amount, "allocatable": amount}})


@contextmanager
def two_seats(name: str) -> Iterator[Seats]:
    seats = Seats(name)
    try:
        seats.offer(2)
        yield seats
    finally:
        seats.remove()


@pytest.fixture
def cluster(namespace: str) -> Cluster:
    return Cluster(namespace, Bucket("unused"))


def growing(cluster: Cluster, launcher: Launcher, workers: int = 2, **placement: Any) -> TrainingJob:
    """Return a training that two pods can begin, and three can finish."""
    training = cluster.synthetic_training(epochs=70, workers=workers, min_workers=2, max_workers=3, launcher=launcher)
    training = replace(training, config=replace(training.config, checkpoint_every=10_000))
    return replace(training, placement=replace(training.placement, **placement))


def scale(api: KubernetesApi, training: TrainingJob, count: int) -> None:
    """Change the number of pods as an autoscaler does."""
    job = training.to_job()
    path = api.path(*job.kind.traits.resource, f"{job.identity.name}/scale")
    api.patch(path, {"spec": {"replicas": count}})


def waiting(api: KubernetesApi) -> set[str]:
    pods = api.get(api.path("v1", "pods"))["items"]
    return {replica_name(pod) for pod in pods if pod["status"]["phase"] == "Pending"}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("launcher", [Launcher.TRAINING_OPERATOR, Launcher.TRAINER, Launcher.JOB])
def test_a_pod_that_joins_later_costs_no_step(namespace: str, cluster: Cluster, launcher: Launcher) -> None:
    with two_seats(namespace) as seats:
        training = growing(cluster, launcher, pod=pod_patch({}, {"resources": {"limits": {seats.name: 1}}}))

        def grow() -> None:
            cluster.await_line("[kubetrain] step=")
            if launcher is Launcher.TRAINING_OPERATOR:
                scale(cluster.api, training, 3)
            await_that(lambda: waiting(cluster.api))
            assert waiting(cluster.api) < {"worker-1", "worker-2"}
            seats.offer(3)

        helper = threading.Thread(target=grow)
        helper.start()
        result = cluster.launch(training)
        helper.join()
    assert result["status"] == "completed"
    stopped_after = int(cluster.await_line("stopped by SIGTERM after step ").text.split("after step ")[1].split(":")[0])
    folder = f"/output/{training.run_id}/checkpoints"
    numbers = {word for line in cluster.lines for word in ("2 processes", "3 processes") if f"{word}," in line.text}
    assert numbers == {"2 processes", "3 processes"}
    resumed = {line.text for line in cluster.lines if "resumes from" in line.text}
    assert resumed == {f"rank {rank} resumes from {folder}/step-{stopped_after:08}" for rank in range(3)}
    assert not [line for line in cluster.lines if line.text.endswith("; restarting")]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("launcher", [Launcher.TRAINER, Launcher.JOB])
def test_a_pod_that_waits_to_join_does_not_take_the_room_of_the_first(
    namespace: str, cluster: Cluster, launcher: Launcher
) -> None:
    with two_seats(namespace) as seats:
        training = growing(cluster, launcher, pod=pod_patch({}, {"resources": {"limits": {seats.name: 1}}}))
        training = replace(training, config=replace(training.config, epochs=30, checkpoint_every=50))
        killer = threading.Thread(
            target=lambda: (cluster.await_line("saved step-"), cluster.kill_pod(training.to_job(), "worker-0"))
        )
        killer.start()
        result = cluster.launch(training)
        killer.join()
    assert result["status"] == "completed"
    assert cluster.await_line("rank 0 resumes from")
    assert not [line for line in cluster.lines if "3 processes," in line.text]
    await_that(lambda: not waiting(cluster.api))


@pytest.mark.timeout(400)
def test_a_pod_that_an_autoscaler_removes_costs_nothing_but_itself(cluster: Cluster) -> None:
    training = growing(cluster, Launcher.TRAINING_OPERATOR, workers=3)
    scaler = threading.Thread(target=lambda: (cluster.await_line("[kubetrain] step="), scale(cluster.api, training, 2)))
    scaler.start()
    result = cluster.launch(training)
    scaler.join()
    assert result["status"] == "completed"
    assert [word for line in cluster.lines if "processes, gloo" in line.text for word in line.text.split()[4:5]] == [
        "3",
        "2",
    ]
    assert not [line for line in cluster.lines if line.text.endswith("; restarting")]


def test_the_operator_makes_an_autoscaler_within_the_range_of_pods(cluster: Cluster, api: KubernetesApi) -> None:
    job = growing(cluster, Launcher.TRAINING_OPERATOR, scale_metrics=[CPU_METRIC]).to_job()
    with KubernetesBackend(api) as backend:
        handle = create_or_attach(job, backend)
        path = api.path("autoscaling/v2", "horizontalpodautoscalers", handle.name)
        await_that(lambda: api.get(path))
        spec = api.get(path)["spec"]
        backend.delete(handle)
    assert (spec["minReplicas"], spec["maxReplicas"], spec["metrics"]) == (2, 3, [CPU_METRIC])
    assert (spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"]) == ("PyTorchJob", handle.name)
