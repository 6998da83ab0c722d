"""The port to a namespace's PVCs and to the snapshots that they are restored from. Adapters make no decisions."""

from collections.abc import Mapping
from typing import Protocol

from kubetrain_components.manifest import Manifest

CLAIM, SNAPSHOT = "PersistentVolumeClaim", "VolumeSnapshot"
"""The kinds of the objects behind this port."""


class Claims(Protocol):
    def find(self, kind: str, name: str) -> Manifest | None: ...

    def all(self, kind: str) -> list[Manifest]:
        """Return all objects of this kind; none if the cluster does not have the kind."""
        ...

    def create(self, manifest: Manifest) -> bool:
        """Create the object; return False if the name is taken."""
        ...

    def annotate(self, found: Manifest, values: Mapping[str, str]) -> Manifest | None:
        """Annotate this object and return it; None if it is gone, even if another object has its name."""
        ...

    def delete(self, kind: str, name: str, preconditions: Mapping[str, str]) -> bool:
        """Delete the object with this uid and resourceVersion; return False if it does not exist or has changed."""
        ...

    def storage_class(self, name: str) -> Manifest | None:
        """Return the storage class; None if it does not exist or our account may not read it."""
        ...

    def has_snapshots(self) -> bool:
        """Return True if the cluster has the VolumeSnapshot API."""
        ...

    def warnings(self, name: str) -> list[str]:
        """Return the messages of a PVC's warning events, newest last; none if our account may not read events."""
        ...

    def users(self) -> list[Manifest]:
        """Return all pods, and all jobs of kubetrain's kinds because a waiting job has no pods, each with its kind.

        Raises:
            KubetrainError: if our account may not list all of them.
        """
        ...
