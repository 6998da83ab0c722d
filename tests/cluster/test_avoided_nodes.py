"""A training whose preflight finds a bad node starts again without it on a real cluster.

The cluster of these tests may have only one node, so one of two pods takes itself for another node's. Its device
multiplies wrongly in the first attempt.
"""

from dataclasses import replace
from typing import Any

import pytest

from kubetrain_components.jobs.annotations import AVOIDED_NODES_ANNOTATION
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_state import Phase
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.launchers import LAUNCHERS, Launcher
from kubetrain_components.jobs.pod_checks import REQUIRED
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.jobs.troubles import TroubleKind
from kubetrain_components.jobs.verdict import JobFailed
from support.cluster import Bucket
from support.training_cluster import Cluster

pytestmark = pytest.mark.cluster
CORE = pytest.mark.core
ELSEWHERE = "elsewhere"
PROGRAM = """
import os, socket
from kubetrain_trainer.processes.resources import NODE_VARIABLE
from kubetrain_trainer.processes.entry_point import run, training_arguments
from kubetrain_trainer.pytorch_ddp import preflight
from kubetrain_trainer.pytorch_ddp.train import train

if "-a2-" not in socket.gethostname():
    preflight.multiply = lambda device: (0.001, os.environ["RANK"] != "1")
    if os.environ["RANK"] == os.environ["ELSEWHERE"]:
        os.environ[NODE_VARIABLE] = "elsewhere"
run(lambda: train(training_arguments("")))
"""
WRITE_PROGRAM = ("sh", "-c", 'printf %s "$0" > /tmp/program.py && exec "$@"', PROGRAM)


@pytest.fixture
def cluster(namespace: str) -> Cluster:
    return Cluster(namespace, Bucket("unused"))


def faulty_job(cluster: Cluster, launcher: Launcher, elsewhere: int, **placement: Any) -> Job:
    """Return a training whose rank 1 is faulty in the first attempt.

    Args:
        elsewhere: The rank that takes itself for another node's.
    """
    training = cluster.synthetic_training(epochs=1, launcher=launcher)
    config = replace(training.config, preflight="avoid")
    placed = replace(training.placement, env={"ELSEWHERE": str(elsewhere)}, **placement)
    job = replace(training, config=config, placement=placed).to_job()
    return replace(job, replicas=tuple(replace(each, command=with_program(each.command)) for each in job.replicas))


def with_program(command: tuple[str, ...]) -> tuple[str, ...]:
    """Let the launcher of the processes run the faulty program instead of the trainer."""
    trainer = command.index("-m", 2)
    return (*WRITE_PROGRAM, *command[:trainer], "/tmp/program.py", *command[trainer + 2 :])


def node_terms(cluster: Cluster, attempt: str) -> list[Any]:
    """Return the terms of which each node for a pod of this attempt must match one."""
    pods = cluster.api.get(cluster.api.path("v1", "pods"))["items"]
    specs = [pod["spec"] for pod in pods if pod["metadata"]["name"].startswith(f"{attempt}-")]
    return [spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] for spec in specs]


@pytest.mark.parametrize(
    "launcher", [pytest.param(each, marks=CORE if each is Launcher.TRAINING_OPERATOR else ()) for each in LAUNCHERS]
)
def test_the_next_attempt_avoids_a_bad_node_and_succeeds(cluster: Cluster, launcher: Launcher) -> None:
    job = faulty_job(cluster, launcher, elsewhere=1)
    with KubernetesBackend(cluster.api) as backend:
        state = run_job(job, backend, cluster.hear)
        first = backend.find(job)
    second = job.identity.next_attempt().name
    assert (state.phase, state.handle.name) == (Phase.SUCCEEDED, second)
    assert state.annotations[AVOIDED_NODES_ANNOTATION] == ELSEWHERE
    assert first is not None
    assert (first.phase, first.annotations[AVOIDED_NODES_ANNOTATION]) == (Phase.FAILED, ELSEWHERE)
    other = {"key": "metadata.name", "operator": "NotIn", "values": [ELSEWHERE]}
    terms = node_terms(cluster, second)
    assert terms and all(each == [{"matchFields": [other]}] for each in terms)
    notice = cluster.await_line("the job restarts without elsewhere").text
    assert "bad nodes found before the first step: elsewhere (faulty device: rank 1 on elsewhere" in notice


def test_without_another_node_the_job_fails_and_says_what_to_do(cluster: Cluster) -> None:
    node = cluster.api.get("/api/v1/nodes", labelSelector="type!=kwok")["items"][0]["metadata"]
    there = {"kubernetes.io/hostname": node["labels"]["kubernetes.io/hostname"]}
    job = faulty_job(cluster, Launcher.JOB, elsewhere=0, start_seconds=60, pod=pod_patch({"nodeSelector": there}))
    with KubernetesBackend(cluster.api) as backend, pytest.raises(JobFailed) as failed:
        run_job(job, backend, cluster.hear)
    cluster.await_line(f"the job restarts without {node['name']}")
    assert failed.value.trouble is TroubleKind.UNSCHEDULABLE
    assert "didn't match Pod's node affinity" in str(failed.value)
    assert "or tolerations of pods.pod, train.preflight=avoid, or the nodes" in str(failed.value)
