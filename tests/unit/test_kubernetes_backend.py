"""The threads of one launcher share a watched job."""

import threading
from pathlib import Path

import pytest

from kubetrain_components.jobs.job import JobHandle
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from support.api_server import ApiServer


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
