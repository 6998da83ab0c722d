"""PVCs on a Kubernetes cluster: the adapter of the port in claims.py."""

from collections.abc import Callable, Mapping
from typing import Any, Self

from kubetrain_components.expose_dataset.claims import CLAIM
from kubetrain_components.jobs.conditions import conditions_of
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import Conflict, Forbidden
from kubetrain_components.jobs.kubernetes.served import Resource, list_if_served
from kubetrain_components.manifest import Manifest, without_empty

METADATA = ("name", "labels")
PVCS = ("v1", "persistentvolumeclaims")
USERS = {"Pod": ("v1", "pods"), **{kind.value: kind.traits.resource for kind in JobKind}}


class KubernetesClaims:
    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    @classmethod
    def connect(cls, namespace: str = "") -> Self:
        return cls(KubernetesApi.connect(namespace))

    def find(self, name: str) -> Manifest | None:
        return self._api.get(self._path(name))

    def all(self) -> list[Manifest]:
        return self._list(CLAIM, PVCS, keep=dict)

    def create(self, manifest: Manifest) -> bool:
        try:
            self._api.create(self._path(), manifest)
        except Conflict:
            return False
        return True

    def annotate(self, found: Manifest, values: Mapping[str, str]) -> Manifest | None:
        metadata = found["metadata"]
        patch = {"metadata": {"uid": metadata["uid"], "annotations": dict(values)}}
        try:
            return self._api.patch(self._path(metadata["name"]), patch)
        except Conflict:
            return None

    def delete(self, name: str, preconditions: Mapping[str, str]) -> bool:
        uid, version = preconditions["uid"], preconditions["resourceVersion"]
        return self._api.delete(self._path(name), uid=uid, resource_version=version)

    def storage_class(self, name: str) -> Manifest | None:
        try:
            return self._api.get(f"/apis/storage.k8s.io/v1/storageclasses/{name}")
        except Forbidden:
            return None

    def warnings(self, name: str) -> list[str]:
        selector = f"type=Warning,involvedObject.kind=PersistentVolumeClaim,involvedObject.name={name}"
        try:
            found = self._api.get(self._api.path("v1", "events"), fieldSelector=selector)
        except Forbidden:
            return []
        events = sorted((found or {}).get("items") or [], key=lambda event: event.get("lastTimestamp") or "")
        return [event.get("message", "") for event in events]

    def users(self) -> list[Manifest]:
        return [item for kind, resource in USERS.items() for item in self._list(kind, resource, keep=evidence_of_use)]

    def _list(self, kind: str, resource: Resource, keep: Callable[[Manifest], Manifest]) -> list[Manifest]:
        """Return the objects with their kind, which items of a list do not carry."""
        return [{**item, "kind": kind} for item in list_if_served(self._api, resource, keep)]

    def _path(self, name: str = "") -> str:
        return self._api.path(*PVCS, name)


def evidence_of_use(each: Manifest) -> Manifest:
    """Return what decides about the uses of PVCs by a pod or a job of any kind, about 1 % of the object."""
    metadata, status = each["metadata"], each.get("status") or {}
    return {
        "metadata": {name: metadata[name] for name in METADATA if name in metadata},
        "spec": _mounts(each.get("spec") or {}) or {},
        "status": without_empty({"phase": status.get("phase", ""), "conditions": conditions_of(each)}),
    }


def _mounts(node: Any) -> Any:
    """Return only the volumes and mounts of a tree, at their places; None if it has none."""
    if isinstance(node, list):
        return [kept for item in node if (kept := _mounts(item))] or None
    if not isinstance(node, dict):
        return None
    found = {name: _mounts(part) for name, part in node.items() if name not in ("volumes", "volumeMounts")}
    found["volumes"] = [volume for volume in node.get("volumes") or () if "persistentVolumeClaim" in volume]
    found["volumeMounts"] = [
        {name: mount[name] for name in ("name", "subPath") if name in mount} for mount in node.get("volumeMounts") or ()
    ]
    return {name: part for name, part in found.items() if part} or None
