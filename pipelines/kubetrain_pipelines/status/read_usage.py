"""Read from a cluster what the pods of jobs request and use."""

from typing import Any

from kubetrain_components.jobs.annotations import RUN_ID
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import KubernetesError
from kubetrain_components.jobs.kubernetes.served import Resource, is_served
from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.status.usage import JobUsage, usage_by_job

PODS, METRICS = ("v1", "pods"), ("metrics.k8s.io/v1beta1", "pods")
NOT_SERVED = "the cluster does not serve metrics.k8s.io: install metrics-server"


def read_usage(api: KubernetesApi, *, all_namespaces: bool) -> tuple[list[JobUsage], str]:
    """Return the usage of the jobs, and why the use is unknown, if it is.

    Raises:
        KubernetesError: if the pods cannot be listed.
    """
    pods = _list(api, PODS, all_namespaces=all_namespaces)
    try:
        if not is_served(api, METRICS):
            return usage_by_job(pods, None), NOT_SERVED
        return usage_by_job(pods, _list(api, METRICS, all_namespaces=all_namespaces)), ""
    except KubernetesError as error:
        return usage_by_job(pods, None), str(error)


def _list(api: KubernetesApi, resource: Resource, *, all_namespaces: bool) -> list[Manifest]:
    path = api.path(*resource)
    if all_namespaces:
        path = path.replace(f"/namespaces/{api.namespace}", "")
    found: Any = api.list_all(path, labelSelector=RUN_ID)
    return list((found or {}).get("items") or [])
