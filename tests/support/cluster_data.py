"""The sync step on the test cluster, as a pipeline's first step takes it."""

from collections.abc import Callable
from typing import Any

from kubetrain_components.expose_dataset.kubernetes_claims import KubernetesClaims
from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.job import LogLine
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.sync_request import SyncRequest
from kubetrain_components.sync_dataset.cluster_sync import sync_on_cluster
from support.cluster import COMPONENTS, ENDPOINT_IN_PODS, SMALL


def sync(
    api: KubernetesApi, bucket: str, run_id: str, storage: Storage, framework: str, hear: Callable[[LogLine], None]
) -> dict[str, Any]:
    source = f"s3://{bucket}/digits"
    request = SyncRequest(
        source=source,
        endpoint_url=ENDPOINT_IN_PODS,
        access="credentials",
        pipeline="p",
        run_id=run_id,
        placement=Placement(**{**SMALL, "image": COMPONENTS, "memory": "512Mi"}),
    )
    parameters = RunParameters(dataset_uri=source, framework=framework, model_uri=source, storage=storage)
    with KubernetesBackend(api) as backend:
        return sync_on_cluster(parameters, request, backend, KubernetesClaims(api), hear)
