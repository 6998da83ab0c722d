"""The threads of one launcher share a watched job."""

import threading
from pathlib import Path

import pytest

from kubetrain_components.jobs.job import JobHandle, Phase
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes import api as kubernetes_api
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from support.api_server import ApiServer
from support.manifests import batch


def test_state_and_logs_share_one_watch_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = JobHandle(kind=JobKind.TF_JOB, name="j", uid="u")
    followed: list[object] = []
    with ApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        with KubernetesBackend.connect() as backend:
            together = threading.Barrier(16)

            def follow() -> None:
                together.wait()
                followed.append(backend._follow(handle))

            threads = [threading.Thread(target=follow) for _ in range(together.parties)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
    assert len({id(each) for each in followed}) == 1


def test_a_running_job_is_followed_while_the_api_server_is_away_for_longer_than_a_launch_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "FIRST_PAUSE_SECONDS", 0.02)
    job = batch()
    path = f"/apis/batch/v1/namespaces/tests/jobs/{job.identity.name}"
    with ApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        with KubernetesBackend(KubernetesApi.connect(retry_seconds=0), job_retry_seconds=60) as backend:
            states = backend.watch(backend.create(job))
            assert next(states) is not None
            server.refuse()
            assert next(states) is not None
            complete = {"type": "Complete", "status": "True"}
            server.put(path, **server.objects[path], status={"conditions": [complete]})
            server.listen()
            assert any(state is not None and state.phase is Phase.SUCCEEDED for state in states)
