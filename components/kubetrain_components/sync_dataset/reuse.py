"""The objects of a new version that need no download: other versions and interrupted syncs have them."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from kubetrain_components.sync_dataset.locks import InUse, version_locked
from kubetrain_components.sync_dataset.manifest import Entry
from kubetrain_components.sync_dataset.partial_version import PartialVersion, partial_versions
from kubetrain_components.sync_dataset.plan import SyncPlan
from kubetrain_components.sync_dataset.report import SyncReport
from kubetrain_components.sync_dataset.resume import IntactFiles
from kubetrain_components.sync_dataset.space import check_space

OnResumed = Callable[[int, int], None]
"""Called with the number of objects that are intact, and of bytes that were hashed."""


def reuse_published(staging: Path, plan: SyncPlan, partial: PartialVersion, report: SyncReport) -> dict[str, str]:
    """Reuse the objects that other versions have; return their checksums by key."""
    checksums: dict[str, str] = {}
    left = plan.bytes
    for each in plan.objects if plan.reuse else ():
        if (reusable := plan.reuse.get(each.key)) is not None:
            source = f"{staging}/versions/{reusable.version}/data/{each.key}"
            if method := partial.reuse(source, Entry(each, reusable.checksum)):
                left -= each.size
                if method == "copied" and not report.copied:
                    check_space(staging, left)  # rather than after hours of copying
                setattr(report, method, getattr(report, method) + 1)
                checksums[each.key] = reusable.checksum
    return checksums


def reuse_interrupted(
    staging: Path, plan: SyncPlan, partial: PartialVersion, present: Iterable[str], on_resumed: OnResumed
) -> dict[str, str]:
    """Reuse the intact objects that interrupted syncs of this source downloaded; return their checksums by key."""
    missing, checksums, files = {each.key: each for each in plan.objects}, dict[str, str](), IntactFiles()
    for key in present:
        del missing[key]
    for other in partial_versions(staging):
        with ExitStack() as stack, suppress(InUse):
            if other.path != partial.path:
                if not other.is_from(plan.dataset_uri):
                    continue
                stack.enter_context(version_locked(staging, other.digest, wait=False))
            wanted = (entry for entry in other.recorded() if missing.get(entry.object.key) == entry.object)
            for found in stack.enter_context(closing(files.of(wanted, other.data))):
                for entry in found:
                    if missing.pop(entry.object.key, None) and (
                        other.path == partial.path or _link(other, partial, entry)
                    ):
                        checksums[entry.object.key] = entry.checksum
                on_resumed(len(checksums), files.bytes)
    return checksums


def _link(other: PartialVersion, partial: PartialVersion, entry: Entry) -> bool:
    """Add a file of another unfinished version."""
    is_added = partial.reuse(f"{other.data}/{entry.object.key}", entry) is not None
    if is_added:
        partial.record_all([entry])
    return is_added
