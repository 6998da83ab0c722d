"""The place of a dataset version, which the sync step passes to later steps."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from kubetrain_components import DATA_PATH, OUTPUT_PATH
from kubetrain_components.jobs.job import ClaimMount
from kubetrain_trainer.data.shard_cache import VARIABLE


@dataclass(frozen=True, kw_only=True)
class DatasetPlace:
    digest: str
    """Empty: the run has no dataset."""
    files: int = 0
    """Number of its files; 0: unknown."""
    claim: str = ""
    """PVC with the version; empty on one machine, where pods read the staging folder."""
    sub_path: str = ""
    shards: dict[str, Any] = field(default_factory=dict)
    """The store that kept the shards of the version: uri, endpoint, access and cache_bytes; empty if the version has
    them."""

    @classmethod
    def of_report(cls, report: dict[str, Any], shards: dict[str, Any] | None = None) -> Self:
        mounted = {name: report[name] for name in ("claim", "sub_path") if name in report}
        return cls(digest=report["digest"], files=report["objects"], shards=shards or {}, **mounted)

    def mounts(self, output_claim: str) -> tuple[ClaimMount, ...]:
        """Return the mounts of the version, read-only, and of the output of all runs, which share checkpoints."""
        data = ClaimMount(claim=self.claim, path=DATA_PATH, sub_path=self.sub_path, read_only=True)
        output = ClaimMount(claim=output_claim, path=OUTPUT_PATH)
        return tuple(mount for mount in (data, output) if mount.claim)

    def folder(self, path: Path) -> Path:
        """Return the path of the version; that of no dataset is empty."""
        return path if self.digest else Path()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def cache_variables(folder: Path | None) -> dict[str, str]:
    """Return the variables that tell a trainer where the shards are, if they are not in its version of the dataset."""
    return {VARIABLE: str(folder)} if folder else {}


def dataset_flags(digest: str, files: float) -> tuple[str, ...]:
    """Return the flags that tell a trainer which version it reads. `files` may have become a float on its way."""
    return ("--dataset-digest", digest, *(("--dataset-files", str(int(files))) if files else ()))
