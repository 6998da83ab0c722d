"""Storage: where a run's data is on a cluster and how pods get it, as one JSON object."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar

from kubetrain_components.expose_dataset.ensure_claim import WantedClaim
from kubetrain_components.expose_dataset.expose import ExposureMode, ExposureRequest
from kubetrain_trainer.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class Storage(Settings):
    CALLED: ClassVar[str] = "storage"

    staging_claim: str = setting("kubetrain-staging", "claim that dataset versions are brought to; made where missing")
    staging_size: str = setting("100Gi", "its size where it is made: a dataset's size and more")
    output_claim: str = setting("kubetrain-output", "claim that trainings write to; made where missing")
    output_size: str = setting("100Gi", "its size where it is made")
    output_access_mode: str = setting(
        "ReadWriteMany", "its access mode where it is made", choices=("ReadWriteMany", "ReadWriteOnce")
    )
    storage_class: str = setting("", "storage class of both where they are made; empty: the cluster's default")
    dataset_name: str = setting("", "what exposed claims are called; empty: by the last part of the source")
    exposure: str = setting("auto", "how training pods see a version read-only", choices=tuple(ExposureMode))
    static_claim: str = setting("", "claim of the administrator over the staging claim's storage, for exposure static")
    snapshot_class: str = setting("", "VolumeSnapshotClass, for exposure snapshot; empty: the driver's default")
    expose_seconds: int = setting(3600, "time that a claim with a version may take to be filled", minimum=1)
    transfer: dict[str, Any] = setting({}, "where and how the transfer's pod runs, as settings of the placement")
    keep_versions: int = setting(3, "versions of each source that are kept at least", minimum=1)

    @property
    def staging(self) -> WantedClaim:
        access_mode = "ReadWriteMany" if self.exposure == ExposureMode.SHARED else "ReadWriteOnce"
        return WantedClaim(
            purpose="staging",
            name=self.staging_claim,
            size=self.staging_size,
            access_mode=access_mode,
            storage_class=self.storage_class,
        )

    @property
    def output(self) -> WantedClaim:
        return WantedClaim(
            purpose="output",
            name=self.output_claim,
            size=self.output_size,
            access_mode=self.output_access_mode,
            storage_class=self.storage_class,
        )

    def exposure_of(self, source: str, digest: str = "0" * 16, size: int = 0) -> ExposureRequest:
        return ExposureRequest(
            dataset_name=self.dataset_name or PurePosixPath(source).name,
            digest=digest,
            source=source,
            bytes=size,
            mode=self.exposure,
            static_claim=self.static_claim,
            snapshot_class=self.snapshot_class,
        )
