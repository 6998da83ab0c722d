"""Kubeflow Pipelines of the cluster that this process runs in, found as kfp's own client finds it."""

from pathlib import Path

from kubetrain_pipelines.kubeflow.connection import SYSTEM_NAMESPACE, Connection
from kubetrain_pipelines.kubeflow.contexts import Context
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import Unreachable
from kubetrain_pipelines.kubeflow.server_version import read_health

ENDPOINT = f"http://ml-pipeline.{SYSTEM_NAMESPACE}.svc.cluster.local:8888"
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
TIMEOUT_SECONDS = 3.0


def context_of_pod() -> Context:
    """Return the endpoint, and the pod's namespace if it is multi-user; without an endpoint if there is none."""
    if not NAMESPACE_FILE.exists():
        return Context()
    api = KfpApi(Connection(endpoint=ENDPOINT), retry_seconds=0, timeout_seconds=TIMEOUT_SECONDS)
    try:
        is_multi_user = read_health(api).is_multi_user
    except Unreachable:
        return Context()
    return Context(endpoint=ENDPOINT, namespace=NAMESPACE_FILE.read_text().strip() if is_multi_user else "")
