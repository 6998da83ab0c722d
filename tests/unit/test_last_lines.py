"""The last lines of a pod that failed, which are requested anew."""

from pathlib import Path

import pytest

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.last_lines import read_last_lines
from support.api_server import PODS, ApiServer, stamp


@pytest.fixture
def api(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubernetesApi:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    return KubernetesApi.connect()


def test_a_container_that_restarted_shows_the_run_before(server: ApiServer, api: KubernetesApi) -> None:
    server.write(server.run("pod"), f"{stamp(1)} RuntimeError: disk says no\n".encode())
    server.write(server.run("pod", restarts=1), f"{stamp(2)} training again\n".encode())
    assert read_last_lines(api, "main", [server.objects[f"{PODS}/pod"]]) == ["RuntimeError: disk says no"]


def test_a_pod_whose_replacement_runs_shows_its_own_end(server: ApiServer, api: KubernetesApi) -> None:
    server.write(server.run("first"), f"{stamp(1)} RuntimeError: disk says no\n".encode())
    server.end("first", "Failed")
    server.write(server.run("second"), f"{stamp(2)} training again\n".encode())
    pods = [server.objects[f"{PODS}/{name}"] for name in ("first", "second")]
    assert read_last_lines(api, "main", pods) == ["RuntimeError: disk says no"]
