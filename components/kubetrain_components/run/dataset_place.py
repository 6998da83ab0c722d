"""The place of a dataset version, which the sync step passes to later steps."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from kubetrain_components import DATA_PATH, OUTPUT_PATH
from kubetrain_components.jobs.job import ClaimMount


@dataclass(frozen=True, kw_only=True)
class DatasetPlace:
    digest: str
    claim: str = ""
    """PVC with the version; empty on one machine, where pods read the staging folder."""
    sub_path: str = ""

    @classmethod
    def of_report(cls, report: dict[str, Any]) -> Self:
        return cls(digest=report["digest"], claim=report.get("claim", ""), sub_path=report.get("sub_path", ""))

    def mounts(self, output_claim: str) -> tuple[ClaimMount, ...]:
        """Return the mounts of the version, read-only, and of the output of all runs, which share checkpoints."""
        data = ClaimMount(claim=self.claim, path=DATA_PATH, sub_path=self.sub_path, read_only=True)
        output = ClaimMount(claim=output_claim, path=OUTPUT_PATH)
        return (data, output) if self.claim else (output,)

    def to_dict(self) -> dict[str, str]:
        return asdict(self)
