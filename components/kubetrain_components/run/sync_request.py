"""Which dataset the first step brings, for which run."""

from dataclasses import dataclass

from kubetrain_components.jobs.job import ClaimMount
from kubetrain_components.jobs.placement import Placement


@dataclass(frozen=True, kw_only=True)
class SyncRequest:
    source: str
    endpoint_url: str
    access: str
    pipeline: str
    run_id: str
    placement: Placement = Placement()
    mounts: tuple[ClaimMount, ...] = ()
    """The staging claim, and others that the run will write to; on one machine none."""
