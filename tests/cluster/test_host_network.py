"""Pods on their node's network, and pods that lock memory for RDMA, in a namespace that permits both."""

import threading
from collections.abc import Iterator

import pytest

from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from support.cluster import pods_job

pytestmark = [pytest.mark.cluster, pytest.mark.core]

RDMA = "example.com/rdma"
MASTER = """
import os, socket
with socket.create_server(("", int(os.environ["MASTER_PORT"]))) as server:
    server.accept()[0].sendall(os.environ["KUBETRAIN_JOB"].encode())
"""
WORKER = """
import os, socket, time
address, deadline = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), time.monotonic() + 30
while time.monotonic() < deadline:
    try:
        print(socket.create_connection(address).recv(100).decode())
        break
    except OSError:
        time.sleep(0.2)
"""
LOCK_MEMORY = """
import ctypes, os, resource
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))  # some nodes let every user lock more
memory = ctypes.create_string_buffer(1 << 20)
failed = ctypes.CDLL(None, use_errno=True).mlock(memory, ctypes.c_size_t(len(memory)))
print(os.strerror(ctypes.get_errno()) if failed else "locked")
"""


@pytest.fixture
def api(namespace: str) -> KubernetesApi:
    made = KubernetesApi.connect(namespace)
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    made.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
    return made


@pytest.fixture
def rdma(api: KubernetesApi) -> Iterator[str]:
    """Give every node a resource for the duration of a test."""
    nodes = [each["metadata"]["name"] for each in (api.get("/api/v1/nodes") or {})["items"]]

    def advertise(count: str | None) -> None:
        for name in nodes:
            api.patch(
                f"/api/v1/nodes/{name}/status", {"status": {"capacity": {RDMA: count}, "allocatable": {RDMA: count}}}
            )

    advertise("2")
    yield RDMA
    advertise(None)


def lines_of(
    api: KubernetesApi, run_id: str, *programs: str, kind: JobKind = JobKind.PYTORCH_JOB, **placement: object
) -> dict[str, str]:
    """Run a job and return the line that each pod printed."""
    lines: list[LogLine] = []
    with KubernetesBackend.connect(api.namespace) as backend:
        run_job(pods_job(*programs, run_id=run_id, kind=kind, **placement), backend, lines.append)
    return {line.pod: line.text for line in lines}


def test_two_jobs_on_one_nodes_network_do_not_mix(api: KubernetesApi) -> None:
    found: dict[str, dict[str, str]] = {}

    def run(name: str) -> None:
        found[name] = lines_of(
            api, name, MASTER, WORKER, host_network=True, env={"KUBETRAIN_JOB": name}, start_seconds=60
        )

    runs = [threading.Thread(target=run, args=(name,)) for name in ("one", "other")]
    for each in runs:
        each.start()
    for each in runs:
        each.join()
    assert {name: lines["worker-0"] for name, lines in found.items()} == {"one": "one", "other": "other"}


def test_a_pod_with_an_rdma_device_may_lock_memory(api: KubernetesApi, rdma: str) -> None:
    lines = lines_of(api, "rdma", LOCK_MEMORY, kind=JobKind.BATCH_JOB, rdma={rdma: 1})
    assert lines == {"transfer-0": "locked"}


def test_a_pod_without_one_may_not(api: KubernetesApi) -> None:
    lines = lines_of(api, "plain", LOCK_MEMORY, kind=JobKind.BATCH_JOB)
    assert lines == {"transfer-0": "Cannot allocate memory"}
