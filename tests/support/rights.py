"""The default permissions of runs on a cluster with Kubeflow Pipelines."""

from pathlib import Path

import yaml

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.manifest import Manifest

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
