"""A namespace for each test, as strict as a careful cluster's; without a cluster the tests are skipped."""

import os
import uuid
from collections.abc import Iterator

import pytest

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_pipelines.local_run.digits import write_digits
from support.cluster import Bucket


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


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder)
    with Bucket(f"digits-{uuid.uuid4().hex[:8]}") as bucket:
        files = (path for path in folder.rglob("*.png"))
        bucket.put({f"digits/{path.relative_to(folder)}": path.read_bytes() for path in files})
        yield bucket
