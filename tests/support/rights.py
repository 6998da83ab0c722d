"""The default permissions of runs on a cluster with Kubeflow Pipelines."""

from pathlib import Path

import yaml

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.manifest import Manifest
from support.cluster import Bucket

# The rules of Kubeflow Pipelines 2.17 that concern a launch.
PIPELINE_RUNNER = [
    {"apiGroups": [""], "resources": ["pods", "pods/log", "services", "persistentvolumeclaims"], "verbs": ["*"]},
    {"apiGroups": ["kubeflow.org"], "resources": ["*"], "verbs": ["*"]},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["*"]},
    {"apiGroups": ["argoproj.io"], "resources": ["workflows"], "verbs": ["get", "list", "watch", "update", "patch"]},
]


LAUNCH = Path(__file__).parents[2] / "deploy" / "rbac" / "launch.yaml"
RIGHTS = "rbac.authorization.k8s.io/v1"


def grant_stock_account(api: KubernetesApi) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "pipeline-runner"}}
    api.create(api.path("v1", "serviceaccounts"), account)
    _grant(api, "pipeline-runner", PIPELINE_RUNNER)


def connect_for_runs(namespace: str) -> KubernetesApi:
    """Return a client of a namespace that is prepared for the steps of a run, with the keys of the stores."""
    api = KubernetesApi.connect(namespace)
    grant_stock_account(api)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kubetrain-s3"}}
    api.create(api.path("v1", "secrets"), {**secret, "stringData": Bucket.credentials})
    return api


def grant_launch(api: KubernetesApi) -> None:
    """Grant the same account what the project's own Role grants."""
    (role,) = (each for each in yaml.safe_load_all(LAUNCH.read_text()) if each["kind"] == "Role")
    _grant(api, "kubetrain-launch", role["rules"])


def _grant(api: KubernetesApi, name: str, rules: list[Manifest]) -> None:
    role = {"apiVersion": RIGHTS, "kind": "Role", "metadata": {"name": name}, "rules": rules}
    api.create(api.path(RIGHTS, "roles"), role)
    binding = {
        "apiVersion": RIGHTS,
        "kind": "RoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "pipeline-runner", "namespace": api.namespace}],
    }
    api.create(api.path(RIGHTS, "rolebindings"), binding)
