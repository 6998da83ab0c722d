"""The contract for watches of the fake API server; tests/cluster runs it on a real one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from support.api_server import ApiServer
from support.watch_contract import WatchContract


class TestFakeServer(WatchContract):
    @pytest.fixture
    def api(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesApi]:
        with ApiServer() as server:
            monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
            yield KubernetesApi.connect()
