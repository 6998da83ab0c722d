"""What a cluster is asked, each question once. No answer is judged here."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import TypeVar

from kubetrain_components.expose_dataset.claims import CLAIM
from kubetrain_components.expose_dataset.kubernetes_claims import KubernetesClaims
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import Forbidden
from kubetrain_components.manifest import Manifest

T = TypeVar("T")

OPERATOR_LABEL = "control-plane=kubeflow-training-operator"
"""Its own manifests give it this one."""
ACCOUNTS = ("pipeline-runner", "default-editor", "kubetrain-launcher")
"""Of Kubeflow Pipelines, of its profiles, and of deploy/."""
AUTOSCALER = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
NODE_MAKERS = ("karpenter.sh", "cluster.x-k8s.io")


class Cluster:
    """
    Raises, whatever is asked:
        KubetrainError: saying why there is no answer.
    """

    def __init__(self, api: KubernetesApi) -> None:
        self.api = api
        self.namespace = api.namespace
        self.claims = KubernetesClaims(api)

    def get(self, path: str) -> Manifest | None:
        return self.api.get(path)

    def own(self, group_version: str, plural: str, name: str) -> Manifest | None:
        """An object of our namespace."""
        return self.api.get(self.api.path(group_version, plural, name))

    def all(self, path: str, **query: str) -> list[Manifest]:
        return list((self.api.get(path, **query) or {}).get("items") or [])

    def claim(self, name: str) -> Manifest | None:
        return self.claims.find(CLAIM, name)

    def review(self, path: str, question: Manifest) -> bool:
        """Whether somebody may do what the question says."""
        return bool(self.api.create(path, question)["status"].get("allowed"))

    @cached_property
    def groups(self) -> dict[str, str]:
        """Of the kinds that it has, with the version that it prefers."""
        found = self.api.get("/apis") or {}
        return {each["name"]: each["preferredVersion"]["version"] for each in found.get("groups", [])}

    @cached_property
    def training_kinds(self) -> list[str]:
        if "kubeflow.org" not in self.groups:
            return []
        return [each["name"] for each in (self.get("/apis/kubeflow.org/v1") or {}).get("resources", [])]

    @cached_property
    def operator(self) -> Manifest | None:
        deployments = self.allowed(lambda: self.all("/apis/apps/v1/deployments", labelSelector=OPERATOR_LABEL))
        if deployments is None:  # we see no namespaces but some
            deployments = self.all("/apis/apps/v1/namespaces/kubeflow/deployments", labelSelector=OPERATOR_LABEL)
        return next(iter(deployments), None)

    @cached_property
    def own_namespace(self) -> Manifest | None:
        return self.get(f"/api/v1/namespaces/{self.namespace}")

    @cached_property
    def storage_classes(self) -> list[Manifest]:
        return self.all("/apis/storage.k8s.io/v1/storageclasses")

    @cached_property
    def usual_account(self) -> str:
        """The first that is there of those that runs have, as far as we may know."""
        there = (
            name for name in ACCOUNTS if self.allowed(partial(self.own, "v1", "serviceaccounts", name)) is not None
        )
        return next(there, ACCOUNTS[0])

    def labels(self) -> dict[str, str]:
        return dict(((self.own_namespace or {}).get("metadata") or {}).get("labels") or {})

    def can_grow(self) -> bool:
        """Whether something makes nodes where pods wait for some, as far as we may know."""
        has_autoscaler = self.allowed(lambda: self.get(AUTOSCALER)) is not None
        return has_autoscaler or any(group in self.groups for group in NODE_MAKERS)

    @staticmethod
    def allowed(ask: Callable[[], T]) -> T | None:
        """None where our account may not know."""
        try:
            return ask()
        except Forbidden:
            return None
