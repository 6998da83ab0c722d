"""How a dataset version reaches training pods read-only: the choice, and the manifests. No cluster is asked.

mode     | what training pods mount
clone    | a ReadOnlyMany claim, ds-<name>-<digest>, cloned from the staging claim
snapshot | the same, restored from a VolumeSnapshot of the staging claim
shared   | the staging claim itself, which is ReadWriteMany
static   | a ReadOnlyMany claim that the administrator made over the same storage
auto     | clone where the storage driver is known to, else shared where the staging claim is ReadWriteMany,
         | else clone where nothing speaks against it, else snapshot where the driver is known to take them
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from kubetrain_components.jobs.job import LABEL_PREFIX, MANAGED_BY, slug
from kubetrain_components.jobs.quantity import whole_amount
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.errors import InvalidSetting, did_you_mean

DATASET_LABEL = LABEL_PREFIX + "dataset"
EXPOSURE_LABEL = LABEL_PREFIX + "exposure"
SOURCE_ANNOTATION = LABEL_PREFIX + "source"
LAST_USED_ANNOTATION = LABEL_PREFIX + "last-used"
SNAPSHOT_GROUP = "snapshot.storage.k8s.io"
DIGEST = re.compile(r"[0-9a-f]{16}")
# Together with "ds-", "-" and a digest the 63 characters of a DNS label.
NAME_LENGTH = 43
OBJECT_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
# Whether it is known to clone, to take snapshots, to mount files ReadOnlyMany; None: not known, or of no account.
KNOWN_DRIVERS: dict[str, tuple[bool | None, bool | None, bool | None]] = {
    "pd.csi.storage.gke.io": (True, True, True),
    "rbd.csi.ceph.com": (True, True, True),
    "cephfs.csi.ceph.com": (True, True, True),
    "ebs.csi.aws.com": (None, None, False),
    "disk.csi.azure.com": (None, None, False),
    "driver.longhorn.io": (None, None, False),  # longhorn/longhorn#5041
    "rancher.io/local-path": (False, False, None),
    "kubernetes.io/no-provisioner": (False, False, None),
}


class ExposureMode(StrEnum):
    AUTO = "auto"
    CLONE = "clone"
    SNAPSHOT = "snapshot"
    SHARED = "shared"
    STATIC = "static"


@dataclass(frozen=True, kw_only=True)
class StorageFacts:
    """The staging claim, and what its storage class can do as far as is known; None: not known."""

    staging_claim: str
    access_modes: tuple[str, ...]
    size: str
    """Its capacity, as Kubernetes writes quantities."""
    volume_mode: str = "Filesystem"
    storage_class: str | None = None
    """Empty: bound to a volume that someone made by hand. None: the cluster's default."""
    provisioner: str = ""
    binds_at_once: bool | None = None
    """False: a claim stays Pending until a pod uses it (WaitForFirstConsumer)."""
    can_clone: bool | None = None
    can_snapshot: bool | None = None
    can_read_only_many: bool | None = None
    has_snapshots: bool = True
    """Whether the cluster has VolumeSnapshot objects at all."""

    def __post_init__(self) -> None:
        _check_name("staging_claim", self.staging_claim)
        whole_amount(self.size)

    @classmethod
    def read(cls, claim: Manifest, storage_class: Manifest | None, *, has_snapshots: bool = True) -> Self:
        """What the API says of both; without a class, which few accounts may read, abilities stay unknown."""
        spec, provisioner = claim["spec"], (storage_class or {}).get("provisioner", "")
        can_clone, can_snapshot, can_read_only_many = _abilities(provisioner)
        return cls(
            staging_claim=claim["metadata"]["name"],
            access_modes=tuple(spec["accessModes"]),
            size=claimed_size(claim),
            volume_mode=spec.get("volumeMode") or "Filesystem",
            storage_class=spec.get("storageClassName"),
            provisioner=provisioner,
            # Immediate is what a class without the field means.
            binds_at_once=storage_class.get("volumeBindingMode") != "WaitForFirstConsumer" if storage_class else None,
            can_clone=can_clone,
            can_snapshot=can_snapshot,
            can_read_only_many=can_read_only_many,
            has_snapshots=has_snapshots,
        )

    @property
    def driver(self) -> str:
        return f"the storage driver '{self.provisioner}'" if self.provisioner else "the storage driver"


@dataclass(frozen=True, kw_only=True)
class ExposureRequest:
    """The version to expose, and the settings of how."""

    dataset_name: str
    digest: str
    source: str
    bytes: int
    mode: str = ExposureMode.AUTO
    static_claim: str = ""
    snapshot_class: str = ""
    """Empty: the default VolumeSnapshotClass of the driver."""

    def __post_init__(self) -> None:
        if self.mode not in set(ExposureMode):
            raise InvalidSetting(f"unknown exposure '{self.mode}': {did_you_mean(self.mode, set(ExposureMode))}")
        if not DIGEST.fullmatch(self.digest):
            raise InvalidSetting(f"dataset digest '{self.digest}' must be 16 hex digits, as in the name of its version")
        for setting in ("static_claim", "snapshot_class"):
            if name := getattr(self, setting):
                _check_name(setting, name)
        if bool(self.static_claim) != (self.mode == ExposureMode.STATIC):
            raise InvalidSetting(
                f"exposure '{self.mode}' and static_claim '{self.static_claim}' do not go together: static needs the "
                "name of the administrator's ReadOnlyMany claim, every other exposure an empty static_claim"
            )


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """How this version is exposed: what to create, and what pods mount."""

    request: ExposureRequest
    storage: StorageFacts
    mode: ExposureMode
    """Never auto."""
    reason: str

    def __str__(self) -> str:
        return f"version {self.request.digest} is exposed by {self.mode} as claim {self.claim} ({self.reason})"

    @property
    def makes_claim(self) -> bool:
        return self.mode in (ExposureMode.CLONE, ExposureMode.SNAPSHOT)

    @property
    def claim(self) -> str:
        """The name of the claim that pods mount."""
        if self.makes_claim:
            return claim_name(self.request.dataset_name, self.request.digest)
        return self.request.static_claim if self.mode is ExposureMode.STATIC else self.storage.staging_claim

    @property
    def sub_path(self) -> str:
        return f"{version_path(self.request.digest)}/data"

    @property
    def data_source(self) -> dict[str, str]:
        """What the claim is made from."""
        if self.mode is ExposureMode.SNAPSHOT:
            return {"apiGroup": SNAPSHOT_GROUP, "kind": "VolumeSnapshot", "name": self.claim}
        return {"kind": "PersistentVolumeClaim", "name": self.storage.staging_claim}

    def manifests(self) -> list[Manifest]:
        """What to create, in this order. Nothing owns it: exposed claims outlive the run."""
        if not self.makes_claim:
            return []
        return [self._snapshot(), self._claim()] if self.mode is ExposureMode.SNAPSHOT else [self._claim()]

    def volume(self) -> Manifest:
        """For a pod; read-only on volume and mount, because access modes bind but keep nobody from writing."""
        return {"name": "dataset", "persistentVolumeClaim": {"claimName": self.claim, "readOnly": True}}

    def mount(self) -> Manifest:
        return {"name": "dataset", "mountPath": "/data", "subPath": self.sub_path, "readOnly": True}

    def _claim(self) -> Manifest:
        spec: Manifest = {
            "accessModes": ["ReadOnlyMany"],
            "volumeMode": "Filesystem",
            # At least the source's, or the driver refuses.
            "resources": {"requests": {"storage": self.storage.size}},
            "dataSource": self.data_source,
        }
        if self.storage.storage_class is not None:
            spec["storageClassName"] = self.storage.storage_class
        return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": self._metadata(), "spec": spec}

    def _snapshot(self) -> Manifest:
        spec: Manifest = {"source": {"persistentVolumeClaimName": self.storage.staging_claim}}
        if self.request.snapshot_class:
            spec["volumeSnapshotClassName"] = self.request.snapshot_class
        api_version = f"{SNAPSHOT_GROUP}/v1"
        return {"apiVersion": api_version, "kind": "VolumeSnapshot", "metadata": self._metadata(), "spec": spec}

    def _metadata(self) -> Manifest:
        return {
            "name": self.claim,
            "labels": {**MANAGED_BY, DATASET_LABEL: self.request.digest, EXPOSURE_LABEL: self.mode.value},
            "annotations": {SOURCE_ANNOTATION: without_credentials(self.request.source)},
        }


def plan_exposure(request: ExposureRequest, storage: StorageFacts) -> Exposure:
    """How to expose the version on this storage.

    Raises:
        InvalidSetting: where the mode that was asked for cannot work there, or none can.
    """
    if request.mode == ExposureMode.AUTO:
        mode, reason = _choose(storage)
    else:
        mode, reason = ExposureMode(request.mode), "as set"
        if (objection := _objection(mode, storage)) is not None:
            raise InvalidSetting(f"exposure '{mode}' cannot work: {objection}; {_remedy(storage)}")
    return Exposure(request=request, storage=storage, mode=mode, reason=reason)


def claim_name(dataset_name: str, digest: str) -> str:
    """A DNS label; of a name that leaves nothing there, the digest alone."""
    return "-".join(part for part in ("ds", slug(dataset_name, NAME_LENGTH), digest) if part)


def version_path(digest: str) -> str:
    """The version's folder on the staging volume and on what was made from it."""
    return f"versions/{digest}"


def claimed_size(claim: Manifest) -> str:
    """The capacity that a claim has, or while it has none what it asks for."""
    capacity = (claim.get("status") or {}).get("capacity") or claim["spec"]["resources"]["requests"]
    return str(capacity["storage"])


def without_credentials(source: str) -> str:
    """The source as anyone in the namespace may read it: without user information, without a signed query."""
    source = re.sub(r"(?<=://)[^/?]*@", "", source)
    return re.sub(r"\?.*(X-Amz-|AWSAccessKeyId=|Signature=|[?&](sig|token)=).*", "", source, flags=re.IGNORECASE)


def is_exposed(claim: Manifest) -> bool:
    """Staging and output claims may be managed by kubetrain too: only exposed ones name a mode and a version."""
    labels = claim["metadata"].get("labels") or {}
    is_ours = labels.items() >= MANAGED_BY.items()
    shows_version = labels.get(EXPOSURE_LABEL) in (ExposureMode.CLONE, ExposureMode.SNAPSHOT)
    return is_ours and shows_version and bool(DIGEST.fullmatch(labels.get(DATASET_LABEL, "")))


def _choose(storage: StorageFacts) -> tuple[ExposureMode, str]:
    no_clone = _objection(ExposureMode.CLONE, storage)
    if no_clone is None and storage.can_clone:
        return ExposureMode.CLONE, f"{storage.driver} can clone volumes"
    why = no_clone or f"whether {storage.driver} can clone volumes is not known"
    if _objection(ExposureMode.SHARED, storage) is None:
        return ExposureMode.SHARED, f"{why}, and the staging claim '{storage.staging_claim}' is ReadWriteMany"
    if no_clone is None:
        return ExposureMode.CLONE, f"{why}, and the staging claim '{storage.staging_claim}' is not ReadWriteMany"
    if storage.can_snapshot and _objection(ExposureMode.SNAPSHOT, storage) is None:
        return ExposureMode.SNAPSHOT, f"{no_clone}, but it can take snapshots"
    raise InvalidSetting(f"no exposure works by itself here: {no_clone}; {_remedy(storage)}")


def _objection(mode: ExposureMode, storage: StorageFacts) -> str | None:
    """Why this mode cannot work; None: nothing known speaks against it."""
    staging = f"the staging claim '{storage.staging_claim}'"
    if mode is ExposureMode.STATIC:
        return None  # the administrator's storage, of which these facts say nothing
    if storage.volume_mode != "Filesystem":
        return f"{staging} is a {storage.volume_mode} volume, which holds no files"
    if mode is ExposureMode.SHARED:
        is_shared = "ReadWriteMany" in storage.access_modes
        return None if is_shared else f"{staging} is {', '.join(storage.access_modes)}, not ReadWriteMany"
    return _objection_to_copies(mode, storage)


def _objection_to_copies(mode: ExposureMode, storage: StorageFacts) -> str | None:
    if mode is ExposureMode.SNAPSHOT and not storage.has_snapshots:
        return "this cluster has no VolumeSnapshot objects, which a snapshot controller and its kinds bring"
    if storage.storage_class == "":
        return f"the staging claim '{storage.staging_claim}' has no storage class that would make one from it"
    if storage.can_read_only_many is False:
        return f"{storage.driver} cannot mount files ReadOnlyMany"
    is_clone = mode is ExposureMode.CLONE
    can = storage.can_clone if is_clone else storage.can_snapshot
    return f"{storage.driver} cannot {'clone volumes' if is_clone else 'take snapshots'}" if can is False else None


def _check_name(setting: str, name: str) -> None:
    if not OBJECT_NAME.fullmatch(name):
        raise InvalidSetting(f"{setting} '{name}' cannot name an object: use up to 253 of a-z, 0-9, '-' and '.'")


def _remedy(storage: StorageFacts) -> str:
    modes = [ExposureMode.CLONE, ExposureMode.SNAPSHOT, ExposureMode.SHARED]
    working = [mode.value for mode in modes if _objection(mode, storage) is None]
    if working:
        return f"set exposure to {' or '.join(working)}"
    return (
        "use a staging claim that is ReadWriteMany, or have the administrator make a ReadOnlyMany claim over the same "
        "storage and set exposure to static and static_claim to its name"
    )


def _abilities(provisioner: str) -> tuple[bool | None, bool | None, bool | None]:
    for driver, abilities in KNOWN_DRIVERS.items():
        # Rook puts its namespace before the name.
        if provisioner == driver or provisioner.endswith(f".{driver}"):
            return abilities
    return None, None, None
