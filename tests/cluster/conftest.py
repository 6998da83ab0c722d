"""A namespace for each test, as strict as a careful cluster's; without a cluster the tests are skipped."""

import os
import uuid
from collections.abc import Iterator

import pytest

from kubetrain_components.jobs.kubernetes_api import KubernetesApi
from kubetrain_components.jobs.kubernetes_backend import KubernetesBackend


@pytest.fixture
def namespace() -> Iterator[str]:
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG names no cluster: export KUBECONFIG=$(../shared/cluster/kubeconfig)")
    api, name = KubernetesApi.connect(), f"kubetrain-{uuid.uuid4().hex[:8]}"
    strict = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": name, "labels": strict}
    api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    yield name
    api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def backend(namespace: str) -> Iterator[KubernetesBackend]:
    with KubernetesBackend.connect(namespace) as made:
        yield made


@pytest.fixture
def api(namespace: str) -> KubernetesApi:
    return KubernetesApi.connect(namespace)
