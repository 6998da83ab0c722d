"""The last lines of a pod that failed, which are requested anew."""

from pathlib import Path

import pytest

from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import JobHandle
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.container_log import read_last_lines
from support.api_server import PODS, ApiServer, stamp

HANDLE = JobHandle(kind=JobKind.BATCH_JOB, name="job", uid="1")


@pytest.fixture
def api(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubernetesApi:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    return KubernetesApi.connect()


def run(server: ApiServer, pod: str, line: str, *, restarts: int = 0) -> None:
    server.write(server.run(pod, restarts=restarts), f"{stamp(1)} {line}\n".encode())
    labels = {"batch.kubernetes.io/job-name": "job", "kubetrain/role": "worker"}
    known = server.objects[f"{PODS}/{pod}"]
    server.put(f"{PODS}/{pod}", **{**known, "metadata": {**known["metadata"], "labels": labels}})


def test_a_container_that_restarted_shows_the_run_before(server: ApiServer, api: KubernetesApi) -> None:
    run(server, "pod", "RuntimeError: disk says no")
    run(server, "pod", "training again", restarts=1)
    assert read_last_lines(api, HANDLE, "worker-0") == ["RuntimeError: disk says no"]


def test_a_pod_whose_replacement_runs_shows_its_own_end(server: ApiServer, api: KubernetesApi) -> None:
    run(server, "first", "RuntimeError: disk says no")
    ended = {"phase": "Failed", "containerStatuses": [{"name": "main", "restartCount": 0, "state": {"terminated": {}}}]}
    server.put(f"{PODS}/first", **{**server.objects[f"{PODS}/first"], "status": ended})
    run(server, "second", "training again")
    assert read_last_lines(api, HANDLE, "worker-0") == ["RuntimeError: disk says no"]
