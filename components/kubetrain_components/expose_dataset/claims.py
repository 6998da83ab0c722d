"""The port to the claims of a namespace, and to the snapshots that claims are made from. Adapters hold no policy."""

from collections.abc import Mapping
from typing import Protocol

from kubetrain_components.manifest import Manifest

CLAIM, SNAPSHOT = "PersistentVolumeClaim", "VolumeSnapshot"
"""The kinds of the objects behind this port."""


class Claims(Protocol):
    def find(self, kind: str, name: str) -> Manifest | None: ...

    def all(self, kind: str) -> list[Manifest]:
        """Every one of this kind, whoever made it; none where the cluster knows no such kind."""
        ...

    def create(self, manifest: Manifest) -> bool:
        """Whether it was made; False where the name is taken: look at what is there."""
        ...

    def annotate(self, found: Manifest, values: Mapping[str, str]) -> Manifest | None:
        """What was found, with these annotations; None where it is gone, and another may have its name."""
        ...

    def delete(self, kind: str, name: str, preconditions: Mapping[str, str]) -> bool:
        """Whether it was there, with this uid and this resourceVersion."""
        ...

    def storage_class(self, name: str) -> Manifest | None:
        """None where there is none, and where our account may not know."""
        ...

    def has_snapshots(self) -> bool:
        """Whether the cluster has objects of that kind."""
        ...

    def warnings(self, name: str) -> list[str]:
        """What the cluster says is wrong with a claim, the newest last; nothing where our account may not know."""
        ...

    def users(self) -> list[Manifest]:
        """The pods, and the jobs of the kinds that kubetrain makes: those that wait have no pod. Each names its kind.

        Raises:
            KubetrainError: where our account may not know all of them.
        """
        ...
