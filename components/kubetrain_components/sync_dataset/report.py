"""The JSON report of what a sync found and did, which has to fit into a termination message."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Self

from kubetrain_components.sync_dataset.download import Fetched
from kubetrain_components.sync_dataset.plan import SyncPlan

MAX_FOLDERS_LENGTH = 2000
"""Maximum length of the list of folders as JSON."""


@dataclass(kw_only=True)
class SyncReport:
    digest: str = ""
    """Empty: the run has no dataset."""
    source: str = ""
    objects: int = 0
    bytes: int = 0
    folders: list[str] = field(default_factory=list)
    """The first parts of the keys, sorted."""
    folders_cut: bool = False
    """True if the report is too small for all folders."""
    downloaded: int = 0
    downloaded_bytes: int = 0
    resumed: int = 0
    """Objects that a sync downloaded before it was interrupted or the dataset changed."""
    linked: int = 0
    """Objects reused from other versions."""
    cloned: int = 0
    """Objects reused by sharing blocks, because the volume cannot link."""
    copied: int = 0
    """Objects reused by copying, because the volume can do neither."""
    unverified: int = 0
    """Downloads of which only the size was checked, because the store reports no checksum, or a made-up ETag."""
    versions: int = 0
    """Number of versions on the volume after the sync."""
    leftovers: int = 0
    """Number of folders of damaged and incompletely deleted versions that pruning can delete."""
    seconds: float = 0.0
    """Duration without waiting for another sync."""
    bytes_per_second: int = 0
    """Download rate."""

    @classmethod
    def of_plan(cls, plan: SyncPlan) -> Self:
        shown = _fit_report(plan.folders)
        return cls(
            digest=plan.digest,
            source=plan.dataset_uri,
            objects=len(plan.objects),
            bytes=plan.bytes,
            folders=shown,
            folders_cut=len(shown) < len(plan.folders),
        )

    def set_seconds(self, seconds: float) -> None:
        self.seconds = round(seconds, 3)
        self.bytes_per_second = round(self.downloaded_bytes / max(self.seconds, 0.001))

    def count(self, fetched: Fetched) -> None:
        self.downloaded += 1
        self.downloaded_bytes += fetched.entry.object.size
        self.unverified += not fetched.is_verified


def _fit_report(folders: Sequence[str]) -> list[str]:
    lengths = accumulate(len(json.dumps(folder)) + len(", ") for folder in folders)
    return [folder for folder, length in zip(folders, lengths, strict=True) if length <= MAX_FOLDERS_LENGTH]
