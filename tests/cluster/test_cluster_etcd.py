"""The etcd of a job on a real cluster: the pods meet there, and it goes with the job."""

import shutil
import threading
import time
from dataclasses import replace

import pytest

from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.pod_patch import pod_patch
from support.cluster import Bucket
from support.etcd import VERSION
from support.manifests import PLAIN, elastic
from support.training_cluster import Cluster

pytestmark = pytest.mark.cluster

ETCD = replace(
    PLAIN,
    rendezvous={"backend": "etcd-v2", "image": "no-such-etcd:3.5"},
    pod=pod_patch({}, {"imagePullPolicy": "Never"}),
)
GONE_SECONDS = 60.0


def beside(api: KubernetesApi) -> list[str]:
    """Return what carries the labels of an etcd, with its owners."""
    found = []
    for resource in (("batch/v1", "jobs"), ("v1", "services")):
        listed = api.get(api.path(*resource), labelSelector="kubetrain/etcd-of") or {}
        for each in listed.get("items") or []:
            owners = [owner["kind"] for owner in each["metadata"].get("ownerReferences") or []]
            found.append(f"{resource[1]} of {' '.join(owners)}")
    return found


def await_gone(api: KubernetesApi) -> None:
    deadline = time.monotonic() + GONE_SECONDS
    while beside(api):
        assert time.monotonic() < deadline, beside(api)
        time.sleep(0.2)


def lose_first(cluster: Cluster, job: Job) -> None:
    """Kill the first pod, and allow no other in its place until the second one has trained without it."""
    cluster.await_line("saved step-")
    quotas = cluster.api.path("v1", "resourcequotas")
    full = {"metadata": {"name": "full"}, "spec": {"hard": {"pods": "2"}}}  # of this training and its etcd
    cluster.api.create(quotas, {"apiVersion": "v1", "kind": "ResourceQuota", **full})
    cluster.kill_pod(job, "worker-0")
    try:
        cluster.await_line("resumes from", "worker-1")
        cluster.await_line("[kubetrain] step=", "worker-1")
    finally:
        cluster.api.delete(f"{quotas}/full")


@pytest.mark.parametrize("kind", [JobKind.PYTORCH_JOB, JobKind.TRAIN_JOB, JobKind.BATCH_JOB])
def test_an_etcd_goes_with_its_job(kind: JobKind, api: KubernetesApi, backend: KubernetesBackend) -> None:
    framework = "" if kind is JobKind.PYTORCH_JOB else "pytorch"
    job = replace(elastic(ETCD, kind=kind, framework=framework), mounts=())
    handle = backend.create(job)
    assert beside(api) == [f"jobs of {kind}", "services of Job"]
    backend.delete(handle)
    await_gone(api)


@pytest.mark.skipif(shutil.which("go") is None, reason="etcd is built from its Go module: install Go")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("launcher", [Launcher.TRAINING_OPERATOR, Launcher.TRAINER, Launcher.JOB])
def test_a_training_meets_in_its_etcd_and_goes_on_without_its_first_pod(namespace: str, launcher: Launcher) -> None:
    cluster = Cluster(namespace, Bucket("unused"))
    training = cluster.synthetic_training(epochs=40, workers=2, min_workers=1, launcher=launcher)
    etcd = {"rendezvous": {"backend": "etcd-v2", "image": f"docker.io/kubetrain/test-etcd:{VERSION}"}}
    training = replace(training, placement=replace(training.placement, **etcd))
    killer = threading.Thread(target=lose_first, args=(cluster, training.to_job()))
    killer.start()
    result = cluster.launch(training)
    killer.join()
    assert result["status"] == "completed"
    assert cluster.await_line("[kubetrain] step=", "worker-1").text
    assert {line.pod for line in cluster.lines if line.text.endswith("; restarting")} == {"worker-0"}
    await_gone(cluster.api)
