"""The contract for watches on a real API server."""

import pytest

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from support.watch_contract import WatchContract

pytestmark = [pytest.mark.cluster, pytest.mark.core]


class TestRealServer(WatchContract):
    @pytest.fixture
    def api(self, namespace: str) -> KubernetesApi:
        return KubernetesApi.connect(namespace)
