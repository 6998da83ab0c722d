"""Disrupted pods on a real cluster: the job restarts them if it may, and reports the cause."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import Job, RestartPolicy
from kubetrain_components.jobs.job_state import Phase
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.manifest import Manifest
from support.cluster import pods_job, real_nodes
from support.following import Heard, batch_job, evict, failure_of, once_running, priority_class, worker_job

pytestmark = pytest.mark.cluster

WHILE = "import time; print('up', flush=True); time.sleep(8)"
LONG = "import time; time.sleep(18)"
FILL = "import time; open('{}', 'wb').write(bytes(30 << 20)); time.sleep(600)"
EVICTED = "Eviction API: evicting"


@pytest.mark.parametrize("job", [worker_job(WHILE), batch_job(WHILE, "disrupted")], ids=["PyTorchJob", "Job"])
def test_an_evicted_pod_is_restarted(backend: KubernetesBackend, api: KubernetesApi, job: Job) -> None:
    heard = Heard()
    with once_running(api, job, evict):
        (pod,) = run_job(job, backend, heard).pods
    assert (pod.phase, pod.restarts) == (Phase.SUCCEEDED, 1)
    assert any(f"{EVICTED}; restarting" in line for line in heard.of(pod.name))


@pytest.mark.core
@pytest.mark.parametrize(
    "job",
    [
        # The operator considers a deleted pod failed, and its TFJob as well, under any policy.
        pods_job(WHILE, WHILE, run_id="evicted", policy=RestartPolicy.ON_FAILURE),
        batch_job(WHILE, "evicted", RestartPolicy.NEVER),
    ],
    ids=["TFJob", "Job"],
)
def test_a_job_that_creates_no_new_pods_after_an_eviction_gets_a_new_attempt(
    backend: KubernetesBackend, api: KubernetesApi, job: Job
) -> None:
    heard = Heard()
    with once_running(api, job, evict):
        state = run_job(job, backend, heard)
    assert state.handle.name == job.identity.next_attempt().name
    assert {pod.phase for pod in state.pods} == {Phase.SUCCEEDED}
    (notice,) = [line for line in heard.of(job.lead) if EVICTED in line]
    assert "once all of its pods have ended" in notice


@pytest.mark.core
@pytest.mark.parametrize("grace", [0, 5])
def test_a_tfjob_whose_pod_somebody_deletes_gets_a_new_attempt(
    backend: KubernetesBackend, api: KubernetesApi, grace: int
) -> None:
    def delete(_: KubernetesApi, pod: Manifest) -> None:
        command = ["kubectl", "delete", "pod", pod["metadata"]["name"], f"--grace-period={grace}"]
        subprocess.run([*command, "--namespace", api.namespace, *([] if grace else ["--force"])], check=True)

    job, heard = pods_job(WHILE, WHILE, run_id="deleted"), Heard()
    with once_running(api, job, delete):
        state = run_job(job, backend, heard)
    assert state.handle.name == job.identity.next_attempt().name
    (notice,) = [line for line in heard.of(job.lead) if "once all of its pods have ended" in line]
    assert "was deleted while it was running" in notice


@contextmanager
def resource_of_one(name: str) -> Iterator[None]:
    """Give a node one unit of a resource that no other pod requests."""
    api = KubernetesApi.connect()
    node = f"{api.get('/api/v1/nodes')['items'][0]['metadata']['name']}"
    path = f"/api/v1/nodes/{node}/status"
    api.patch(path, {"status": {"capacity": {name: "1"}}})
    try:
        while name not in api.get(f"/api/v1/nodes/{node}")["status"]["allocatable"]:
            time.sleep(0.2)
        yield
    finally:
        api.patch(path, {"status": {"capacity": {name: None}, "allocatable": {name: None}}})


def test_a_preempted_pod_waits_for_room_and_restarts(
    namespace: str, backend: KubernetesBackend, api: KubernetesApi
) -> None:
    seat = {"resources": {"limits": {f"example.com/{namespace}": 1}}}
    job = batch_job(WHILE, "humble", pod=pod_patch(main=seat))
    urgent = batch_job(LONG, "urgent", pod=pod_patch({"priorityClassName": namespace}, seat))

    def take_its_place(*unused: Any) -> None:
        with KubernetesBackend(api) as other:
            run_job(urgent, other, Heard())

    heard = Heard()
    with resource_of_one(f"example.com/{namespace}"), priority_class(namespace), once_running(api, job, take_its_place):
        state = run_job(job, backend, heard)
    assert [(pod.phase, pod.restarts) for pod in state.pods] == [(Phase.SUCCEEDED, 1)]
    lines = "\n".join(heard.of("transfer-0"))
    assert "default-scheduler: preempting" in lines
    assert "cannot be scheduled" in lines


def limits_local_storage(api: KubernetesApi, node: str) -> bool:
    configuration = api.get(f"/api/v1/nodes/{node}/proxy/configz")["kubeletconfig"]
    return bool(configuration.get("localStorageCapacityIsolation", True))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/tmp/much", "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi"),
        ("/scratch/much", 'Usage of EmptyDir volume "scratch" exceeds the limit "10Mi"'),
    ],
)
def test_the_kubelet_evicts_a_pod_that_fills_the_nodes_disk(
    backend: KubernetesBackend, api: KubernetesApi, path: str, message: str
) -> None:
    if not any(limits_local_storage(api, node) for node in real_nodes(api)):
        pytest.skip("no node limits local storage: the kubelets have localStorageCapacityIsolation off")
    job = worker_job(
        FILL.format(path),
        backoff_limit=2,
        pod=pod_patch(
            {"volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "10Mi"}}]},
            {
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                "resources": {"limits": {"ephemeral-storage": "10Mi"} if path.startswith("/tmp") else {}},
            },
        ),
    )
    error = failure_of(job, backend)
    assert f"worker-0 was evicted: {message} (after 2 restarts)" in str(error)
    assert "max_restarts" in str(error)
