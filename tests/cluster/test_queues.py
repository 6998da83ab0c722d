"""Jobs that a queue admits, rejects or evicts. Tests are skipped if the cluster does not have Kueue or Volcano."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kubetrain_components.jobs.budgets import Budgets
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import Job, RestartPolicy
from kubetrain_components.jobs.job_kinds import TRAINING_KINDS
from kubetrain_components.jobs.job_state import Phase
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_pipelines.doctor.queues import managed_frameworks
from support.cluster import FOREVER, pods_job
from support.following import (
    Heard,
    await_running,
    batch_job,
    failure_of,
    once_running,
    priority_class,
    training_job,
    worker_job,
)

pytestmark = pytest.mark.cluster

QUICK = "print('up')"
WHILE = "import time; print('up', flush=True); time.sleep(8)"
KUEUE = {"scheduler": "kueue", "queue": "research"}


def skip_without(kind: str, system: str) -> None:
    if KubernetesApi.connect().get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind}") is None:
        pytest.skip(f"the cluster has no {system}: it does not know {kind}")


class KueueQueue:
    """The LocalQueue research of a namespace, and the ClusterQueue behind it."""

    def __init__(self, namespace: str) -> None:
        self._api, self._namespace = KubernetesApi.connect(namespace), namespace
        self._version = self._api.get("/apis/kueue.x-k8s.io")["preferredVersion"]["groupVersion"]

    def make(self) -> None:
        # Kueue may be configured to manage only namespaces with this label.
        self._api.patch(f"/api/v1/namespaces/{self._namespace}", {"metadata": {"labels": {"kubetrain/kueue": "yes"}}})
        self._create("ResourceFlavor", self._namespace, {})
        self._create("ClusterQueue", self._namespace, {**self._quota("0"), "namespaceSelector": {}})
        path = self._api.path(self._version, "localqueues")
        self._create("LocalQueue", "research", {"clusterQueue": self._namespace}, path)

    def open(self, cpu: str) -> None:
        self._api.patch(f"{self._path('clusterqueue')}/{self._namespace}", {"spec": self._quota(cpu)})

    def delete(self) -> None:
        for kind in ("clusterqueue", "resourceflavor"):
            self._api.delete(f"{self._path(kind)}/{self._namespace}")

    def _quota(self, cpu: str) -> dict[str, Any]:
        quotas = [{"name": "cpu", "nominalQuota": cpu}, {"name": "memory", "nominalQuota": "4Gi"}]
        flavor = {"name": self._namespace, "resources": quotas}
        preemption = {"withinClusterQueue": "LowerPriority"}
        return {
            "preemption": preemption,
            "resourceGroups": [{"coveredResources": ["cpu", "memory"], "flavors": [flavor]}],
        }

    def _path(self, kind: str) -> str:
        return f"/apis/{self._version}/{kind.lower()}s"

    def _create(self, kind: str, name: str, spec: dict[str, Any], path: str = "") -> None:
        made = {"apiVersion": self._version, "kind": kind, "metadata": {"name": name}, "spec": spec}
        self._api.create(path or self._path(kind), made)


def kueue_frameworks() -> list[str] | None:
    settings = KubernetesApi.connect().get("/api/v1/namespaces/kueue-system/configmaps/kueue-manager-config")
    return managed_frameworks(settings)


@pytest.fixture(autouse=True)
def skip_kinds_that_kueue_leaves_alone(request: pytest.FixtureRequest) -> None:
    job = request.node.callspec.params.get("job") if hasattr(request.node, "callspec") else None
    is_operators = job is not None and job.kind in TRAINING_KINDS
    if is_operators and f"kubeflow.org/{job.kind.lower()}" not in (kueue_frameworks() or []):
        pytest.skip(f"Kueue leaves a {job.kind} alone, unless its configuration says otherwise")


@pytest.fixture
def queue(namespace: str) -> Iterator[KueueQueue]:
    """A queue that has no room yet."""
    skip_without("localqueues.kueue.x-k8s.io", "Kueue")
    made = KueueQueue(namespace)
    made.make()
    yield made
    made.delete()


EACH_KIND = pytest.mark.parametrize(
    "job",
    [
        worker_job(WHILE, **KUEUE),
        pods_job(WHILE, WHILE, run_id="queued", policy=RestartPolicy.ON_FAILURE, **KUEUE),
        batch_job(WHILE, "queued", **KUEUE),
        training_job(Launcher.TRAINER, WHILE, "queued", placement=KUEUE),
        training_job(Launcher.JOB, WHILE, "queued", placement=KUEUE),
    ],
    ids=["PyTorchJob", "TFJob", "Job", "TrainJob", "indexed Job"],
)


@EACH_KIND
def test_a_job_that_kueue_never_admits_fails_with_the_reason(
    backend: KubernetesBackend, queue: KueueQueue, job: Job
) -> None:
    error = str(failure_of(job, backend, budgets=Budgets(start_seconds=4)))
    assert "in a queue that does not admit it as it is for" in error
    assert "the queue will never admit it (Kueue's queue research: couldn't assign flavors to pod set" in error
    assert "insufficient quota for cpu" in error


def test_a_kind_of_job_that_kueue_leaves_alone(backend: KubernetesBackend, queue: KueueQueue) -> None:
    if "kubeflow.org/tfjob" in (kueue_frameworks() or []):
        pytest.skip("this Kueue manages TFJobs")
    job = pods_job(WHILE, WHILE, run_id="queued", **KUEUE)
    error = str(failure_of(job, backend, budgets=Budgets(start_seconds=8)))
    assert "the queue will never admit it (Kueue's queue research: no job is pending in it" in error
    assert "Kueue may not manage TFJobs" in error


def test_a_queue_of_kueue_that_does_not_exist(backend: KubernetesBackend, queue: KueueQueue) -> None:
    job = batch_job(QUICK, "queued", **{**KUEUE, "queue": "nosuch"})
    error = str(failure_of(job, backend, budgets=Budgets(start_seconds=4)))
    assert "the queue will never admit it (Kueue's queue nosuch: it does not exist in this namespace)" in error


@EACH_KIND
def test_time_in_kueues_queue_does_not_count_as_start(backend: KubernetesBackend, queue: KueueQueue, job: Job) -> None:
    queue.open("100m")
    first = batch_job(FOREVER, "first", cpu="100m", **KUEUE)
    backend.create(first)
    heard = Heard()
    leaving = threading.Timer(32, backend.delete, [await_running(backend, first).handle])
    leaving.start()
    state = run_job(job, backend, heard, Budgets(start_seconds=30, run_seconds=30))
    assert state.phase is Phase.SUCCEEDED
    assert any("insufficient unused quota for cpu" in line.text for line in heard.lines), (
        "the reason is reported while it waits"
    )


@EACH_KIND
def test_a_job_that_kueue_evicts_continues_once_readmitted(
    namespace: str, backend: KubernetesBackend, api: KubernetesApi, queue: KueueQueue, job: Job
) -> None:
    queue.open("100m")
    urgent = batch_job(WHILE, "urgent", cpu="100m", **KUEUE, pod=pod_patch({"priorityClassName": namespace}))

    def take_its_place(*unused: Any) -> None:
        with KubernetesBackend(api) as other:
            run_job(urgent, other, Heard())

    heard = Heard()
    with priority_class(namespace), once_running(api, job, take_its_place):
        state = run_job(job, backend, heard)
    assert {(pod.phase, pod.restarts) for pod in state.pods} == {(Phase.SUCCEEDED, 0)}
    assert set(heard.of(state.pods[0].name)) == {"up"}, "it is not a restart"
    assert any("insufficient unused quota for cpu" in line.text for line in heard.lines)


@contextmanager
def volcano_queue(name: str, cpu: str) -> Iterator[None]:
    api, queues = KubernetesApi.connect(), "/apis/scheduling.volcano.sh/v1beta1/queues"
    spec = {"weight": 1, "capability": {"cpu": cpu, "memory": "4Gi"}}
    made = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
    api.create(queues, made)
    try:
        yield
    finally:
        api.delete(f"{queues}/{name}")


GANG = pytest.mark.parametrize("workers", [True, False], ids=["PyTorchJob", "TFJob"])


def gang(workers: bool, **placement: Any) -> Job:
    if workers:
        return worker_job(QUICK, scheduler="volcano", **placement)
    return pods_job(QUICK, QUICK, run_id="gang", scheduler="volcano", **placement)


@GANG
def test_a_gang_that_volcano_admits(namespace: str, backend: KubernetesBackend, workers: bool) -> None:
    skip_without("podgroups.scheduling.volcano.sh", "Volcano")
    with volcano_queue(namespace, "1"):
        assert run_job(gang(workers, queue=namespace), backend, Heard()).phase is Phase.SUCCEEDED


@GANG
def test_a_gang_that_volcano_never_admits_fails_with_the_reason(
    namespace: str, backend: KubernetesBackend, workers: bool
) -> None:
    skip_without("podgroups.scheduling.volcano.sh", "Volcano")
    with volcano_queue(namespace, "40m"):
        error = str(failure_of(gang(workers, queue=namespace), backend, budgets=Budgets(queue_seconds=6)))
    assert "waiting in the queue for" in error
    assert f"(Volcano's queue {namespace}: queue resource quota insufficient: insufficient cpu)" in error
