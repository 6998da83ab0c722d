"""The default permissions of runs on a cluster with Kubeflow Pipelines."""

from kubetrain_components.jobs.kubernetes.api import KubernetesApi

# The rules of Kubeflow Pipelines 2.17 that concern a launch.
PIPELINE_RUNNER = [
    {"apiGroups": [""], "resources": ["pods", "pods/log", "services", "persistentvolumeclaims"], "verbs": ["*"]},
    {"apiGroups": ["kubeflow.org"], "resources": ["*"], "verbs": ["*"]},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["*"]},
    {"apiGroups": ["argoproj.io"], "resources": ["workflows"], "verbs": ["get", "list", "watch", "update", "patch"]},
]


def grant_stock_account(api: KubernetesApi) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "pipeline-runner"}}
    api.create(api.path("v1", "serviceaccounts"), account)
    rights = "rbac.authorization.k8s.io/v1"
    role = {"apiVersion": rights, "kind": "Role", "metadata": {"name": "pipeline-runner"}, "rules": PIPELINE_RUNNER}
    api.create(api.path(rights, "roles"), role)
    binding = {
        "apiVersion": rights,
        "kind": "RoleBinding",
        "metadata": {"name": "pipeline-runner"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "pipeline-runner"},
        "subjects": [{"kind": "ServiceAccount", "name": "pipeline-runner", "namespace": api.namespace}],
    }
    api.create(api.path(rights, "rolebindings"), binding)
