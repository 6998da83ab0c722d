"""A training by Ray Train in two small workers of a real RayJob: a good one, one that fails, one that is cancelled.

The node of the test cluster is this machine, so its pods find Ray and PyTorch in the environments of this checkout.
"""

import os
import signal
import sysconfig
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.kubernetes.served import is_served
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.jobs.verdict import JobFailed
from kubetrain_components.launch_training.launch import launch_training
from kubetrain_components.launch_training.training_job import TrainingJob
from support.cluster import Bucket, await_that
from support.ray import PACKAGES
from support.training_cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]
CHECKOUT = Path(__file__).parents[2]
FOLDERS = {"ray": PACKAGES, "torch": Path(sysconfig.get_path("purelib")), "checkout": CHECKOUT}
MEETS = """
import os
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from kubetrain_trainer import session

def work():
    for step in range(3):
        one = torch.ones(1)
        torch.distributed.all_reduce(one)
        session.log(step + 1, total=one)
    session.finish(lambda folder: torch.save(one, folder / "model.pt"), {"total": one})

storage = RunConfig(storage_path=os.environ["KUBETRAIN_OUTPUT"] + "/ray")
TorchTrainer(work, scaling_config=ScalingConfig(num_workers=2), run_config=storage).fit()
"""
FAILS = MEETS.replace(
    "    for step in range(3):", "    raise ValueError('the labels are wrong')\n    for step in range(3):"
)
LASTS = MEETS.replace(
    "    for step in range(3):", "    import time\n    for step in range(3000):\n        time.sleep(0.5)"
)


@pytest.fixture
def cluster(namespace: str) -> Cluster:
    api = KubernetesApi.connect(namespace)
    if not is_served(api, JobKind.RAY_JOB.traits.resource) or not PACKAGES.exists():
        pytest.skip("no KubeRay or no Ray: ../shared/cluster/add ray, make .venv-ray/installed")
    for_host_paths = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}
    api.patch(f"/api/v1/namespaces/{namespace}", for_host_paths, 5)
    return Cluster(namespace, Bucket("unused"))


def training(cluster: Cluster, script: str) -> TrainingJob:
    synthetic = cluster.synthetic_training(epochs=1)
    mounts = [{"name": name, "mountPath": f"/host/{name}", "readOnly": True} for name in FOLDERS]
    volumes = [{"name": name, "hostPath": {"path": str(path)}} for name, path in FOLDERS.items()]
    made = {"name": "made", "mountPath": "/made"}
    ray = '#!/bin/sh\nexec python -m ray.scripts.scripts "$@"\n'
    program = f"for name, text in (('ray', {ray!r}), ('train.py', {script!r})): open('/made/' + name, 'w').write(text)"
    writer = {
        "name": "write-code",
        "image": "python:3.11-slim",
        "command": ["sh", "-c", 'python -c "$0" && chmod +x /made/ray', program],
        "volumeMounts": [made],
    }
    spec = {"initContainers": [writer], "volumes": [*volumes, {"name": "made", "emptyDir": {}}]}
    environment = {
        "PATH": "/made:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": "/host/checkout/trainer:/host/ray:/host/torch",
        "RAY_USAGE_STATS_ENABLED": "0",
        "HOME": "/tmp",
    }
    placed = replace(
        synthetic.placement,
        image="python:3.11-slim",
        cpu="300m",
        env=environment,
        shm_size="512Mi",
        pod=pod_patch(spec, {"volumeMounts": [*mounts, made]}),
    )
    config = replace(synthetic.config, entry={"script": "/made/train.py"})
    return replace(synthetic, config=config, placement=placed, launcher=Launcher.RAY)


def test_two_workers_train_and_their_result_is_that_of_rank_0(cluster: Cluster) -> None:
    job = training(cluster, MEETS)
    result = cluster.launch(job)
    assert (result["step"], result["checkpoint"]) == (3, "step-00000003")
    assert "[kubetrain] step=3 total=2" in {line.text for line in cluster.lines if line.pod == "submitter-0"}
    assert cluster.launch(job)["checkpoint"] == "step-00000003"  # attached to what has succeeded
    await_that(lambda: not running_pods(cluster))


def test_the_error_of_a_worker_fails_the_training(cluster: Cluster) -> None:
    with pytest.raises(JobFailed, match="submitter-0: ValueError: the labels are wrong"):
        cluster.launch(training(cluster, FAILS))
    await_that(lambda: not running_pods(cluster))


def test_a_launch_that_is_cancelled_leaves_nothing(cluster: Cluster) -> None:
    job = training(cluster, LASTS)

    def cancel() -> None:
        cluster.await_line("[kubetrain] step=2 ")
        os.kill(os.getpid(), signal.SIGINT)

    canceling = threading.Thread(target=cancel)
    canceling.start()
    with pytest.raises(KeyboardInterrupt), KubernetesBackend(cluster.api) as backend:
        launch_training(job, backend, cluster.hear)
    canceling.join()
    await_that(lambda: not running_pods(cluster))
    assert KubernetesBackend(cluster.api).find(job.to_job()) is None


def running_pods(cluster: Cluster) -> list[str]:
    pods = (cluster.api.get(cluster.api.path("v1", "pods")) or {})["items"]
    return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]
