"""Workflow objects on a cluster without Argo, so nothing runs them."""

import contextlib

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import Conflict, UnknownKind
from kubetrain_components.manifest import Manifest
from support.cluster import await_that

GROUP = "argoproj.io/v1alpha1"
WORKFLOW_KIND = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "workflows.argoproj.io"},
    "spec": {
        "group": "argoproj.io",
        "scope": "Namespaced",
        "names": {"kind": "Workflow", "plural": "workflows"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def serve_workflows(api: KubernetesApi) -> None:
    """Define the kind Workflow, unless the cluster has it."""
    with contextlib.suppress(Conflict):
        api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", WORKFLOW_KIND)
    await_that(lambda: _are_served(api))


def _are_served(api: KubernetesApi) -> bool:
    try:
        return api.get(api.path(GROUP, "workflows")) is not None
    except UnknownKind:
        return False


def make_workflow(api: KubernetesApi, name: str, **status: str) -> Manifest:
    """Create a Workflow, and return an owner reference to it."""
    workflow = {"apiVersion": GROUP, "kind": "Workflow", "metadata": {"name": name}, "spec": {}, "status": status}
    made = api.create(api.path(GROUP, "workflows"), workflow)
    return {"apiVersion": GROUP, "kind": "Workflow", "name": name, "uid": made["metadata"]["uid"]}
