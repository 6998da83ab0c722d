"""The storage settings of a run on a cluster: its PVCs, and how pods mount them."""

from dataclasses import dataclass
from typing import Any, ClassVar

from kubetrain_components.expose_dataset.ensure_claim import WantedClaim
from kubetrain_components.expose_dataset.expose import ExposureMode, ExposureRequest
from kubetrain_trainer.settings.base import Settings, setting


@dataclass(frozen=True, kw_only=True)
class Storage(Settings):
    GROUP: ClassVar[str] = "storage"

    staging_claim: str = setting("kubetrain-staging", "PVC for dataset versions; created if missing", in_form=True)
    staging_size: str = setting(
        "100Gi", "size of the staging PVC if it is created; more than the dataset's size", in_form=True
    )
    output: str = setting(
        "", "store for checkpoints and models, so that they need no PVC: s3://BUCKET/PREFIX; empty: output_claim"
    )
    output_claim: str = setting("kubetrain-output", "PVC for checkpoints and models; created if missing", in_form=True)
    output_size: str = setting("100Gi", "size of the output PVC if it is created; with output, of each pod's disk")
    output_access_mode: str = setting(
        "ReadWriteMany", "access mode of the output PVC if it is created", choices=("ReadWriteMany", "ReadWriteOnce")
    )
    storage_class: str = setting(
        "",
        "storage class of both PVCs if they are created; empty: the cluster's default",
        name="storage.class",
        in_form=True,
    )
    exposure: str = setting(
        "auto", "how training pods get read-only access to a version", choices=tuple(ExposureMode), in_form=True
    )
    static_claim: str = setting("", "read-only PVC over the staging PVC's storage, for exposure static")
    expose_seconds: int = setting(3600, "timeout in seconds for filling the PVC of a dataset version", minimum=1)
    transfer: dict[str, Any] = setting({}, "settings of pods that differ for the pod of a transfer")
    keep_versions: int = setting(3, "minimum number of versions to keep of each source", minimum=1)

    @property
    def staging(self) -> WantedClaim:
        access_mode = "ReadWriteMany" if self.exposure == ExposureMode.SHARED else "ReadWriteOnce"
        return self._wanted("staging", self.staging_claim, self.staging_size, access_mode)

    @property
    def mounted_output(self) -> str:
        """The PVC of the output; empty: pods write to their own disks."""
        return "" if self.output else self.output_claim

    @property
    def wanted_output(self) -> WantedClaim:
        return self._wanted("output", self.output_claim, self.output_size, self.output_access_mode)

    def exposure_of(self, source: str, digest: str = "0" * 16, size: int = 0) -> ExposureRequest:
        return ExposureRequest(
            digest=digest,
            source=source,
            bytes=size,
            mode=ExposureMode(self.exposure),
            static_claim=self.static_claim,
        )

    def _wanted(self, purpose: str, name: str, size: str, access_mode: str) -> WantedClaim:
        return WantedClaim(
            purpose=purpose, name=name, size=size, access_mode=access_mode, storage_class=self.storage_class
        )
