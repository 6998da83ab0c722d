"""The exact environment of pods that Kubernetes numbers, once it has replaced references to their number."""

import json
from dataclasses import replace
from typing import Any

import pytest

from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.kubernetes.manifests.indexed_job import indexed_environment
from support.manifests import PLAIN, indexed, indexed_elastic


def host_of(index: int) -> str:
    return f"job-{index}.service"


def environment(job: Job, index: int) -> dict[str, str]:
    """Return the variables as the kubelet expands them: a reference is replaced only if its variable comes before."""
    values: dict[str, str] = {}
    for each in indexed_environment(job, host_of):
        value = each["value"] if "value" in each else value_from(each, index)
        for name, known in values.items():
            value = value.replace(f"$({name})", known)
        values[each["name"]] = value
    return values


def value_from(variable: dict[str, Any], index: int) -> str:
    path = variable["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    return str(index)


def test_pytorch_with_a_fixed_number_of_pods() -> None:
    assert environment(indexed(processes_per_replica=8), 2) == {
        "JOB_COMPLETION_INDEX": "2",
        "MASTER_ADDR": "job-0.service",
        "MASTER_PORT": "23456",
        "PET_MASTER_ADDR": "job-0.service",
        "PET_MASTER_PORT": "23456",
        "PET_NNODES": "3",
        "PET_NODE_RANK": "2",
        "PET_NPROC_PER_NODE": "8",
        "RANK": "2",
        "WORLD_SIZE": "24",
    }


def test_elastic_pytorch() -> None:
    assert environment(indexed_elastic(), 1) == {
        "JOB_COMPLETION_INDEX": "1",
        "PET_MAX_RESTARTS": "6",
        "PET_NNODES": "2:4",
        "PET_NPROC_PER_NODE": "8",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_CONF": "last_call_timeout=3,keep_alive_interval=1",
        "PET_RDZV_ENDPOINT": "job-0.service:23456",
        "PET_RDZV_ID": "run-7",
    }


def test_tensorflow_reads_a_number_as_its_index() -> None:
    values = environment(indexed(framework="tensorflow"), 2)
    assert values.keys() == {"JOB_COMPLETION_INDEX", "TF_CONFIG"}
    assert json.loads(values["TF_CONFIG"]) == {
        "cluster": {"worker": ["job-0.service:23456", "job-1.service:23456", "job-2.service:23456"]},
        "task": {"type": "worker", "index": 2},
    }


def test_one_tensorflow_worker_needs_no_cluster() -> None:
    (worker,) = indexed().replicas
    alone = indexed(framework="tensorflow", replicas=(replace(worker, count=1),))
    assert environment(alone, 0) == {"JOB_COMPLETION_INDEX": "0"}


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_pods_on_a_nodes_network_have_one_port_for_all(framework: str) -> None:
    values = environment(indexed(replace(PLAIN, host_network=True), framework=framework), 0)
    port = "22277"
    assert values["TF_CONFIG"].count(f":{port}") == 3 if "TF_CONFIG" in values else values["MASTER_PORT"] == port
