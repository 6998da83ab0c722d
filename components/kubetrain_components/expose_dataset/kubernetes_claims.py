"""PVCs and snapshots on a Kubernetes cluster: the adapter of the port in claims.py."""

from collections.abc import Callable, Mapping
from typing import Self

from kubetrain_components.expose_dataset.users import evidence_of_use
from kubetrain_components.jobs.job_kinds import COMMAND_KINDS, JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import Conflict, Forbidden, UnknownKind
from kubetrain_components.manifest import Manifest

SNAPSHOTS = "snapshot.storage.k8s.io/v1"
RESOURCES = {
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "VolumeSnapshot": (SNAPSHOTS, "volumesnapshots"),
}
USERS = {
    "Pod": ("v1", "pods"),
    **{kind.value: kind.traits.resource for kind in JobKind},
}


class KubernetesClaims:
    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    @classmethod
    def connect(cls, namespace: str = "") -> Self:
        return cls(KubernetesApi.connect(namespace))

    def find(self, kind: str, name: str) -> Manifest | None:
        found = self._api.get(self._path(kind, name))
        return {**found, "kind": kind} if found else None

    def all(self, kind: str) -> list[Manifest]:
        return self._list(kind, *RESOURCES[kind])

    def create(self, manifest: Manifest) -> bool:
        try:
            self._api.create(self._path(manifest["kind"]), manifest)
        except Conflict:
            return False
        return True

    def annotate(self, found: Manifest, values: Mapping[str, str]) -> Manifest | None:
        metadata = found["metadata"]
        patch = {"metadata": {"uid": metadata["uid"], "annotations": dict(values)}}
        try:
            patched = self._api.patch(self._path(found["kind"], metadata["name"]), patch)
        except Conflict:
            return None
        return {**patched, "kind": found["kind"]} if patched else None

    def delete(self, kind: str, name: str, preconditions: Mapping[str, str]) -> bool:
        uid, version = preconditions["uid"], preconditions["resourceVersion"]
        return self._api.delete(self._path(kind, name), uid=uid, resource_version=version)

    def storage_class(self, name: str) -> Manifest | None:
        try:
            return self._api.get(f"/apis/storage.k8s.io/v1/storageclasses/{name}")
        except Forbidden:
            return None

    def has_snapshots(self) -> bool:
        return self._is_known(SNAPSHOTS)

    def warnings(self, name: str) -> list[str]:
        selector = f"type=Warning,involvedObject.kind=PersistentVolumeClaim,involvedObject.name={name}"
        try:
            found = self._api.get(self._api.path("v1", "events"), fieldSelector=selector)
        except Forbidden:
            return []
        events = sorted((found or {}).get("items") or [], key=lambda event: event.get("lastTimestamp") or "")
        return [event.get("message", "") for event in events]

    def users(self) -> list[Manifest]:
        return [each for kind, resource in USERS.items() for each in self._list(kind, *resource, keep=evidence_of_use)]

    def _list(
        self, kind: str, group_version: str, plural: str, keep: Callable[[Manifest], Manifest] = dict
    ) -> list[Manifest]:
        try:
            found = self._api.list_all(self._api.path(group_version, plural), keep)
        except UnknownKind:
            return []
        except Forbidden:  # also the answer for kinds that the cluster does not have
            # A role of an earlier release does not grant to list all kinds; their pods are listed in any case.
            if self._is_known(group_version) and kind not in COMMAND_KINDS:
                raise
            return []
        # List items do not carry their kind.
        return [{**each, "kind": kind} for each in (found or {}).get("items") or []]

    def _is_known(self, group_version: str) -> bool:
        try:
            return self._api.get(f"/{'api' if group_version == 'v1' else 'apis'}/{group_version}") is not None
        except UnknownKind:
            return False

    def _path(self, kind: str, name: str = "") -> str:
        return self._api.path(*RESOURCES[kind], name)
