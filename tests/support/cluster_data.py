"""The sync step on the test cluster, as a pipeline's first step takes it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kubetrain_components.expose_dataset.kubernetes_claims import KubernetesClaims
from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.sync_dataset.cluster_sync import sync_on_cluster
from support.cluster import COMPONENTS, ENDPOINT_IN_PODS, SMALL


def sync(
    api: KubernetesApi, bucket: str, run_id: str, storage: Storage, framework: str, hear: Callable[[LogLine], None]
) -> dict[str, Any]:
    parameters = RunParameters(
        dataset_uri=f"s3://{bucket}/digits",
        s3_endpoint=ENDPOINT_IN_PODS,
        pipeline="p",
        run_id=run_id,
        framework=framework,
        model_uri=f"s3://{bucket}/models",
        storage=replace(storage, transfer={**SMALL, "image": COMPONENTS, "memory": "512Mi"}),
    )
    with KubernetesBackend(api) as backend:
        return sync_on_cluster(parameters, backend, KubernetesClaims(api), hear)
