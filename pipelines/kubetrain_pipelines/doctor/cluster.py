"""Queries to the cluster, whose answers other files judge."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, TypeVar

from kubetrain_components.expose_dataset.kubernetes_claims import KubernetesClaims
from kubetrain_components.jobs.job_kinds import TRAINER_API, JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import Forbidden
from kubetrain_components.jobs.kubernetes.served import is_served
from kubetrain_components.jobs.launchers import ALL_LAUNCHERS, Launcher
from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.doctor.launcher import spec_fields

T = TypeVar("T")

OPERATOR_LABEL = "control-plane=kubeflow-training-operator"
"""The label of the operator's Deployment in its own manifests."""
TRAINER_LABEL = "app.kubernetes.io/name in (trainer,kubeflow-trainer),app.kubernetes.io/component=manager"
"""The labels of Trainer's Deployment in its own manifests, and in its Helm chart."""
ACCOUNTS = ("pipeline-runner", "default-editor", "kubetrain-launcher")
"""The accounts of runs: of Kubeflow Pipelines, of its profiles, and of deploy/."""
AUTOSCALER = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
NODE_PROVISIONERS = ("karpenter.sh", "cluster.x-k8s.io")


class Cluster:
    """The cluster, as your account sees it. Every query raises KubetrainError if it fails."""

    def __init__(self, api: KubernetesApi) -> None:
        self.api = api
        self.namespace = api.namespace
        self.claims = KubernetesClaims(api)

    def get(self, path: str) -> Manifest | None:
        return self.api.get(path)

    def get_in_namespace(self, group_version: str, plural: str, name: str) -> Manifest | None:
        return self.api.get(self.api.path(group_version, plural, name))

    def objects(self, path: str, **query: Any) -> list[Manifest]:
        return list((self.api.get(path, **query) or {}).get("items") or [])

    def claim(self, name: str) -> Manifest | None:
        return self.claims.find(name)

    def review(self, path: str, review: Manifest) -> bool:
        """Return the answer to an access review."""
        return bool(self.api.create(path, review)["status"].get("allowed"))

    @cached_property
    def groups(self) -> dict[str, str]:
        """The API groups of the cluster, with their preferred versions."""
        found = self.api.get("/apis") or {}
        return {group["name"]: group["preferredVersion"]["version"] for group in found.get("groups", [])}

    def launchers(self, framework: str) -> list[Launcher]:
        """Return the launchers whose kind of job the cluster has. Every cluster has batch Jobs."""
        return [
            launcher
            for launcher in ALL_LAUNCHERS
            if launcher is Launcher.JOB or is_served(self.api, launcher.kind(framework).traits.resource)
        ]

    @cached_property
    def operator(self) -> Manifest | None:
        return self._deployment(OPERATOR_LABEL, "kubeflow")

    @cached_property
    def trainer(self) -> Manifest | None:
        return self._deployment(TRAINER_LABEL, "kubeflow-system")

    def train_job_fields(self) -> frozenset[str] | None:
        """Return the fields of a TrainJob's spec. Every account may read the description, but few may read CRDs."""
        return spec_fields(self.get(f"/openapi/v3/apis/{TRAINER_API}"), JobKind.TRAIN_JOB)

    def _deployment(self, label: str, namespace: str) -> Manifest | None:
        """Return the first Deployment with this label, in any namespace if your account may list them, or in this."""
        found = self.if_allowed(lambda: self.objects("/apis/apps/v1/deployments", labelSelector=label))
        if found is None:
            found = self.objects(f"/apis/apps/v1/namespaces/{namespace}/deployments", labelSelector=label)
        return next(iter(found), None)

    @cached_property
    def own_namespace(self) -> Manifest | None:
        return self.get(f"/api/v1/namespaces/{self.namespace}")

    @cached_property
    def storage_classes(self) -> list[Manifest]:
        return self.objects("/apis/storage.k8s.io/v1/storageclasses")

    @cached_property
    def default_account(self) -> str:
        """The first of the usual accounts that is known to exist, or else the first."""
        existing = (name for name in ACCOUNTS if self.if_allowed(partial(self.account, name)) is not None)
        return next(existing, ACCOUNTS[0])

    def ca_of_steps(self) -> Manifest:
        """Return the volume source of the CA that Kubeflow Pipelines gives to steps, or {}."""
        path = "/apis/apps/v1/namespaces/kubeflow/deployments/ml-pipeline"
        deployment = self.if_allowed(lambda: self.get(path)) or {"spec": {"template": {"spec": {"containers": []}}}}
        containers = deployment["spec"]["template"]["spec"]["containers"]
        env = {item["name"]: item.get("value", "") for container in containers for item in container.get("env") or []}
        items = [{"key": env.get("CABUNDLE_KEY_NAME") or "ca.crt", "path": "ca.crt"}]
        if secret := env.get("CABUNDLE_SECRET_NAME"):
            return {"secret": {"secretName": secret, "items": items}}
        if config_map := env.get("CABUNDLE_CONFIGMAP_NAME"):
            return {"configMap": {"name": config_map, "items": items}}
        return {}

    def account(self, name: str) -> Manifest | None:
        return self.get_in_namespace("v1", "serviceaccounts", name)

    def labels(self) -> dict[str, str]:
        """Return the labels of the namespace."""
        return dict(((self.own_namespace or {}).get("metadata") or {}).get("labels") or {})

    def can_grow(self) -> bool:
        """Return True if the cluster is known to add nodes for pending pods."""
        has_autoscaler = self.if_allowed(lambda: self.get(AUTOSCALER)) is not None
        return has_autoscaler or any(group in self.groups for group in NODE_PROVISIONERS)

    @staticmethod
    def if_allowed(ask: Callable[[], T]) -> T | None:
        """Return the answer, or None if your account lacks the permission."""
        try:
            return ask()
        except Forbidden:
            return None
