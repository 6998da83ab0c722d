"""The place of a dataset version, which the sync step passes to later steps."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from kubetrain_components import DATA_PATH, OUTPUT_PATH
from kubetrain_components.jobs.job import ClaimMount


@dataclass(frozen=True, kw_only=True)
class DatasetPlace:
    digest: str
    files: int = 0
    """Number of its files; 0: unknown."""
    claim: str = ""
    """PVC with the version; empty on one machine, where pods read the staging folder."""
    sub_path: str = ""

    @classmethod
    def of_report(cls, report: dict[str, Any]) -> Self:
        mounted = {name: report[name] for name in ("claim", "sub_path") if name in report}
        return cls(digest=report["digest"], files=report["objects"], **mounted)

    def mounts(self, output_claim: str) -> tuple[ClaimMount, ...]:
        """Return the mounts of the version, read-only, and of the output of all runs, which share checkpoints."""
        data = ClaimMount(claim=self.claim, path=DATA_PATH, sub_path=self.sub_path, read_only=True)
        output = ClaimMount(claim=output_claim, path=OUTPUT_PATH)
        return (data, output) if self.claim else (output,)

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def dataset_flags(digest: str, files: float) -> tuple[str, ...]:
    """Return the flags that tell a trainer which version it reads. `files` may have become a float on its way."""
    return ("--dataset-digest", digest, *(("--dataset-files", str(int(files))) if files else ()))
