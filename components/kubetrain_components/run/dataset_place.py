"""Where training pods find a dataset version: what the sync step tells those after it."""

from dataclasses import asdict, dataclass
from typing import Any

from kubetrain_components import DATA_PATH, OUTPUT_PATH
from kubetrain_components.jobs.job import ClaimMount


@dataclass(frozen=True, kw_only=True)
class DatasetPlace:
    digest: str
    claim: str = ""
    """Empty on one machine, where the staging folder itself is read."""
    sub_path: str = ""

    @classmethod
    def of(cls, report: dict[str, Any]) -> "DatasetPlace":
        return cls(digest=report["digest"], claim=report.get("claim", ""), sub_path=report.get("sub_path", ""))

    def mounts(self, output_claim: str) -> tuple[ClaimMount, ...]:
        """The version for reading alone; the output whole: runs find one another's checkpoints there."""
        data = ClaimMount(claim=self.claim, path=DATA_PATH, sub_path=self.sub_path, read_only=True)
        output = ClaimMount(claim=output_claim, path=OUTPUT_PATH)
        return (data, output) if self.claim else (output,)

    def to_dict(self) -> dict[str, str]:
        return asdict(self)
