"""Choose how training pods get read-only access to a dataset version, and build its PVC's manifest, without a cluster.

mode   | what training pods mount
clone  | a ReadOnlyMany PVC, ds-<staging PVC>-<name>-<digest>, cloned from the staging PVC
shared | the staging PVC itself, which must be ReadWriteMany
static | a ReadOnlyMany PVC that the administrator created over the same storage
auto   | clone if the storage driver is known to support it; else shared if the staging PVC is ReadWriteMany;
       | else clone if nothing known rules it out
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from kubetrain_components.expose_dataset.storage_facts import StorageFacts, volume_problem
from kubetrain_components.jobs.annotations import LABEL_PREFIX, MANAGED_BY
from kubetrain_components.jobs.job_identity import slug
from kubetrain_components.jobs.names import check_object_name
from kubetrain_components.manifest import Manifest
from kubetrain_components.object_store.open_store import without_secrets
from kubetrain_trainer.errors import InvalidSetting

DATASET_LABEL = LABEL_PREFIX + "dataset"
SOURCE_ANNOTATION = LABEL_PREFIX + "source"
LAST_USED_ANNOTATION = LABEL_PREFIX + "last-used"
DIGEST = re.compile(r"[0-9a-f]{16}")
# With "ds-", "-" and a digest, at most the 63 characters of a DNS label.
MAX_NAME_LENGTH = 43


class ExposureMode(StrEnum):
    AUTO = "auto"
    CLONE = "clone"
    SHARED = "shared"
    STATIC = "static"


class CannotExpose(InvalidSetting):
    """The storage cannot expose dataset versions as requested."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}; {remedy}")
        self.cause, self.remedy = cause, remedy


@dataclass(frozen=True, kw_only=True)
class ExposureRequest:
    """The version to expose and the settings of its exposure."""

    digest: str
    source: str
    bytes: int
    mode: ExposureMode = ExposureMode.AUTO
    static_claim: str = ""

    def __post_init__(self) -> None:
        if not DIGEST.fullmatch(self.digest):
            raise InvalidSetting(f"dataset digest '{self.digest}' must be 16 hex digits, as in the version's name")
        if self.static_claim:
            check_object_name("storage.static_claim", self.static_claim)
        if bool(self.static_claim) != (self.mode is ExposureMode.STATIC):
            raise InvalidSetting(
                f"storage.exposure '{self.mode}' and storage.static_claim '{self.static_claim}' do not fit together: "
                "set storage.static_claim, the name of the administrator's ReadOnlyMany PVC, for exposure static and "
                "for no other"
            )


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """The chosen way to expose a version: what to create, and what pods mount."""

    request: ExposureRequest
    storage: StorageFacts
    mode: ExposureMode
    """Never auto."""
    reason: str

    def __str__(self) -> str:
        return f"version {self.request.digest} is exposed by {self.mode} as PVC {self.claim} ({self.reason})"

    @property
    def creates_claim(self) -> bool:
        return self.mode is ExposureMode.CLONE

    @property
    def claim(self) -> str:
        """The name of the PVC that pods mount."""
        if self.creates_claim:
            return claim_name(self.storage.staging_claim, self.request.source, self.request.digest)
        return self.request.static_claim if self.mode is ExposureMode.STATIC else self.storage.staging_claim

    @property
    def sub_path(self) -> str:
        return f"{version_path(self.request.digest)}/data"

    @property
    def data_source(self) -> dict[str, str]:
        """The dataSource of the PVC."""
        return {"kind": "PersistentVolumeClaim", "name": self.storage.staging_claim}

    def manifest(self) -> Manifest:
        """Return the PVC to create, without an owner because exposed PVCs outlive the run."""
        spec: Manifest = {
            "accessModes": ["ReadOnlyMany"],
            "volumeMode": "Filesystem",
            # Drivers reject a copy that is smaller than its source.
            "resources": {"requests": {"storage": self.storage.size}},
            "dataSource": self.data_source,
        }
        if self.storage.storage_class is not None:
            spec["storageClassName"] = self.storage.storage_class
        metadata = {
            "name": self.claim,
            "labels": {**MANAGED_BY, DATASET_LABEL: self.request.digest},
            "annotations": {SOURCE_ANNOTATION: without_secrets(self.request.source)},
        }
        return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def plan_exposure(request: ExposureRequest, storage: StorageFacts) -> Exposure:
    """Choose how to expose the version on this storage.

    Raises:
        CannotExpose: if the requested mode, or for auto every mode, is known not to work.
    """
    if request.mode is ExposureMode.AUTO:
        mode, reason = _choose(storage)
    else:
        mode, reason = request.mode, "as configured"
        if (objection := _objection(mode, storage)) is not None:
            raise CannotExpose(f"storage.exposure '{mode}' cannot work: {objection}", _remedy(storage))
    return Exposure(request=request, storage=storage, mode=mode, reason=reason)


def claim_name(staging_claim: str, source: str, digest: str) -> str:
    """Return the name of a clone, a DNS label. Clones of two staging PVCs of one namespace have different names."""
    return f"ds-{slug(f'{staging_claim}-{PurePosixPath(source).name}', MAX_NAME_LENGTH)}-{digest}"


def version_path(digest: str) -> str:
    """The version's folder on the staging volume and its copies."""
    return f"versions/{digest}"


def is_exposed(claim: Manifest) -> bool:
    """Return True for PVCs that expose a version; staging and output PVCs carry only MANAGED_BY."""
    labels = claim["metadata"].get("labels") or {}
    is_ours = labels.items() >= MANAGED_BY.items()
    return is_ours and bool(DIGEST.fullmatch(labels.get(DATASET_LABEL, "")))


def _choose(storage: StorageFacts) -> tuple[ExposureMode, str]:
    no_clone = _objection(ExposureMode.CLONE, storage)
    if no_clone is None and storage.can_clone:
        return ExposureMode.CLONE, f"{storage.driver} can clone volumes"
    why = no_clone or f"it is unknown whether {storage.driver} can clone volumes"
    if _objection(ExposureMode.SHARED, storage) is None:
        return ExposureMode.SHARED, f"{why}, and the staging PVC '{storage.staging_claim}' is ReadWriteMany"
    if no_clone is None:
        return ExposureMode.CLONE, f"{why}, and the staging PVC '{storage.staging_claim}' is not ReadWriteMany"
    raise CannotExpose(f"storage.exposure 'auto' found no mode that works: {no_clone}", _remedy(storage))


def _objection(mode: ExposureMode, storage: StorageFacts) -> str | None:
    """Return why this mode cannot work, or None if nothing known rules it out."""
    staging = f"the staging PVC '{storage.staging_claim}'"
    if mode is ExposureMode.STATIC:
        return None  # the facts do not describe the administrator's storage
    if problem := volume_problem(storage.volume_mode):
        return f"{staging} {problem}"
    if mode is ExposureMode.SHARED:
        is_shared = "ReadWriteMany" in storage.access_modes
        return None if is_shared else f"{staging} is {', '.join(storage.access_modes)}, not ReadWriteMany"
    if storage.storage_class == "":
        return f"{staging} has no storage class to provision a copy with"
    if storage.can_read_only_many is False:
        return f"{storage.driver} cannot mount files ReadOnlyMany"
    return f"{storage.driver} cannot clone volumes" if storage.can_clone is False else None


def _remedy(storage: StorageFacts) -> str:
    for mode in (ExposureMode.CLONE, ExposureMode.SHARED):
        if _objection(mode, storage) is None:
            return f"set storage.exposure to {mode}"
    return (
        "use a ReadWriteMany staging PVC, or ask the administrator for a ReadOnlyMany PVC over the same storage, then "
        "set storage.exposure to static and storage.static_claim to the PVC's name"
    )
