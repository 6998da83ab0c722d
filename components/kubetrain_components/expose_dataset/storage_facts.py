"""The staging PVC, and what its storage class is known to support."""

from dataclasses import dataclass
from typing import Self

from kubetrain_components.manifest import Manifest

# Support for cloning and for ReadOnlyMany filesystems; None: unknown or irrelevant.
KNOWN_DRIVERS: dict[str, tuple[bool | None, bool | None]] = {
    "pd.csi.storage.gke.io": (True, True),
    "rbd.csi.ceph.com": (True, True),
    "cephfs.csi.ceph.com": (True, True),
    "ebs.csi.aws.com": (None, False),
    "disk.csi.azure.com": (None, False),
    "driver.longhorn.io": (None, False),  # longhorn/longhorn#5041
    "rancher.io/local-path": (False, None),
    "kubernetes.io/no-provisioner": (False, None),
}
DISKS = ("pd.csi.storage.gke.io", "rbd.csi.ceph.com", "ebs.csi.aws.com", "disk.csi.azure.com")
"""Drivers whose volumes only the pods of one node can write."""


def volume_problem(mode: str | None) -> str:
    """Return why pods cannot use a volume of this mode, empty if they can. Kubernetes' default is Filesystem."""
    return "" if (mode or "Filesystem") == "Filesystem" else f"is a {mode} volume, which cannot hold files"


@dataclass(frozen=True, kw_only=True)
class StorageFacts:
    """The staging PVC and the abilities of its storage class; an ability is None if unknown."""

    staging_claim: str
    access_modes: tuple[str, ...]
    size: str
    """Capacity as a Kubernetes quantity."""
    volume_mode: str = "Filesystem"
    storage_class: str | None = None
    """Empty: the PVC is bound to a manually created volume. None: the cluster's default class."""
    provisioner: str = ""
    binds_immediately: bool | None = None
    """False: a PVC stays Pending until a pod uses it (WaitForFirstConsumer)."""
    can_clone: bool | None = None
    can_read_only_many: bool | None = None

    @classmethod
    def read(cls, claim: Manifest, storage_class: Manifest | None) -> Self:
        """Read the facts from both objects; few accounts may read the class, and without it abilities are unknown."""
        spec, provisioner = claim["spec"], (storage_class or {}).get("provisioner", "")
        can_clone, can_read_only_many = _abilities(provisioner)
        # A class without volumeBindingMode binds immediately.
        binds_immediately = (storage_class or {}).get("volumeBindingMode") != "WaitForFirstConsumer"
        return cls(
            staging_claim=claim["metadata"]["name"],
            access_modes=tuple(spec["accessModes"]),
            size=claim_size(claim),
            volume_mode=spec.get("volumeMode") or "Filesystem",
            storage_class=spec.get("storageClassName"),
            provisioner=provisioner,
            binds_immediately=binds_immediately if storage_class else None,
            can_clone=can_clone,
            can_read_only_many=can_read_only_many,
        )

    @property
    def driver(self) -> str:
        return f"the storage driver '{self.provisioner}'" if self.provisioner else "the storage driver"


def claim_size(claim: Manifest) -> str:
    """The capacity of a PVC, or the size it requests while it has no capacity."""
    capacity = (claim.get("status") or {}).get("capacity") or claim["spec"]["resources"]["requests"]
    return str(capacity["storage"])


def _abilities(provisioner: str) -> tuple[bool | None, bool | None]:
    return next((abilities for driver, abilities in KNOWN_DRIVERS.items() if _is(driver, provisioner)), (None, None))


def is_disk(provisioner: str) -> bool:
    return any(_is(driver, provisioner) for driver in DISKS)


def _is(driver: str, provisioner: str) -> bool:
    return provisioner == driver or provisioner.endswith(f".{driver}")  # Rook prefixes it with its namespace
