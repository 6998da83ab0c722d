"""The transfer job's program: one dataset version from a store to the staging volume.

python -m kubetrain_components.sync_dataset.transfer --source s3://BUCKET/PREFIX --staging DIR
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path

from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.store import ObjectChanged, ObjectStore, StoredObject
from kubetrain_components.sync_dataset.fetch import Fetched, fetch_all
from kubetrain_components.sync_dataset.partial_version import PartialVersion, partial_versions
from kubetrain_components.sync_dataset.plan import SyncPlan, plan_sync
from kubetrain_components.sync_dataset.publish import (
    is_published,
    known_objects,
    locked,
    partial_path,
    publish,
    read_version,
)
from kubetrain_trainer.entry_point import run
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.progress_line import format_progress
from kubetrain_trainer.termination import report_result

LISTING_ROUNDS = 3
FOLDERS_LENGTH = 2000  # of their JSON: the report must fit into a termination message
DEFAULT_CONCURRENCY = 16


@dataclass(frozen=True)
class Progress:
    """How much of a version is there."""

    objects: int
    bytes: int
    of_objects: int
    of_bytes: int

    def plus(self, each: StoredObject) -> "Progress":
        return replace(self, objects=self.objects + 1, bytes=self.bytes + each.size)


OnProgress = Callable[[Progress], None]


@dataclass(kw_only=True)
class SyncReport:
    """What a sync found and did."""

    digest: str
    source: str
    objects: int
    bytes: int
    folders: list[str]
    """The first parts of the keys, by name."""
    folders_cut: bool
    """There are more than the report can hold."""
    downloaded: int = 0
    downloaded_bytes: int = 0
    resumed: int = 0
    """Downloaded before, by a sync that was interrupted or whose source changed, and intact."""
    linked: int = 0
    copied: int = 0
    """Taken from another version where the volume cannot link."""
    unverified: int = 0
    """Downloads that the store offered no checksum for: only their size was checked."""
    seconds: float = 0.0


def transfer_dataset(
    store: ObjectStore,
    staging: Path,
    concurrency: int = DEFAULT_CONCURRENCY,
    on_progress: OnProgress = lambda progress: None,
) -> SyncReport:
    """Make the version that the source is now, from what is there already and the rest downloaded.

    Raises:
        KubetrainError: where the source is missing, empty, changing or corrupt, or the target cannot be written;
            no version is left half made.
    """
    started = time.monotonic()
    with _disk_errors_explained(staging), locked(staging):
        for _ in range(LISTING_ROUNDS):
            try:
                plan = plan_from_listing(store, staging)
                report = _empty_report(plan)
                if not plan.exists:
                    _make_version(store, staging, plan, concurrency, report, on_progress)
                report.seconds = round(time.monotonic() - started, 3)
                return report
            except ObjectChanged:
                continue
    raise KubetrainError(
        f"the source {store.uri} is changing: it differed from its listing {LISTING_ROUNDS} times; "
        "sync again when nothing writes to it"
    )


@contextmanager
def _disk_errors_explained(staging: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KubetrainError(
            f"cannot write to {staging} ({error.strerror or error}): choose a directory that you may write, "
            "with space for the dataset"
        ) from error


def plan_from_listing(store: ObjectStore, staging: Path) -> SyncPlan:
    plan = plan_sync(store.uri, store.list())
    return replace(plan, exists=True) if is_published(staging, plan) else plan.reusing(known_objects(staging))


def _empty_report(plan: SyncPlan) -> SyncReport:
    folders = sorted({each.key.partition("/")[0] for each in plan.objects if "/" in each.key})
    shown = _fitting(folders)
    return SyncReport(
        digest=plan.digest,
        source=plan.source,
        objects=len(plan.objects),
        bytes=plan.bytes,
        folders=shown,
        folders_cut=len(shown) < len(folders),
    )


def _fitting(folders: Sequence[str]) -> list[str]:
    lengths = accumulate(len(json.dumps(folder)) + len(", ") for folder in folders)
    return [folder for folder, length in zip(folders, lengths, strict=True) if length <= FOLDERS_LENGTH]


def _make_version(
    store: ObjectStore, staging: Path, plan: SyncPlan, concurrency: int, report: SyncReport, on_progress: OnProgress
) -> None:
    partial = PartialVersion(partial_path(staging, plan))
    partial.begin()
    checksums = _reuse_published(staging, plan, partial, report)
    checksums |= _reuse_interrupted(staging, plan, partial, report)
    missing = [each for each in plan.objects if each.key not in checksums]
    progress = Progress(len(checksums), plan.bytes - sum(each.size for each in missing), len(plan.objects), plan.bytes)
    on_progress(progress)
    with closing(fetch_all(store, missing, partial, concurrency)) as fetches:
        for fetched in fetches:
            checksums[fetched.entry.object.key] = fetched.entry.checksum
            _count(fetched, report)
            progress = progress.plus(fetched.entry.object)
            on_progress(progress)
    publish(staging, plan, checksums)


def _reuse_published(staging: Path, plan: SyncPlan, partial: PartialVersion, report: SyncReport) -> dict[str, str]:
    """Link what other versions have; their checksums come with it."""
    checksums: dict[str, str] = {}
    for digest in sorted(set(plan.reuse.values())):
        version = read_version(staging / "versions" / digest)
        assert version is not None, "the plan names published versions"
        for entry in version.entries():
            if plan.reuse.get(entry.object.key) == digest and entry.has_its_size(version.data):
                is_linked = partial.take(version.data / entry.object.key, entry.object.key)
                report.linked += is_linked
                report.copied += not is_linked
                checksums[entry.object.key] = entry.checksum
    return checksums


def _reuse_interrupted(staging: Path, plan: SyncPlan, partial: PartialVersion, report: SyncReport) -> dict[str, str]:
    """Take what interrupted syncs downloaded, of this listing or an older one, and is still what was verified."""
    wanted, checksums = set(plan.fetch), dict[str, str]()
    for left in partial_versions(staging):
        for entry in left.recorded():
            if entry.object in wanted and entry.problem_in(left.data) is None:
                if left != partial:
                    partial.take(left.data / entry.object.key, entry.object.key)
                wanted.remove(entry.object)
                checksums[entry.object.key] = entry.checksum
    report.resumed = len(checksums)
    return checksums


def _count(fetched: Fetched, report: SyncReport) -> None:
    report.downloaded += 1
    report.downloaded_bytes += fetched.entry.object.size
    report.unverified += not fetched.is_verified


def _print_progress() -> OnProgress:
    last = 0.0

    def print_sometimes(progress: Progress) -> None:
        nonlocal last
        if progress.objects == progress.of_objects or time.monotonic() - last >= 0.5:
            last = time.monotonic()
            objects = f"{progress.objects}/{progress.of_objects}"
            print(format_progress(objects=objects, bytes=progress.bytes), flush=True)

    return print_sometimes


def main() -> None:
    parser = argparse.ArgumentParser(description="One dataset version from a store to the staging volume.")
    parser.add_argument("--source", required=True, help="s3://BUCKET/PREFIX, or a directory")
    parser.add_argument("--staging", type=Path, required=True, help="the folder that holds the versions")
    parser.add_argument("--endpoint-url", default="", help="S3 server; default AWS")
    arguments = parser.parse_args()
    store = open_store(arguments.source, arguments.endpoint_url)
    report = transfer_dataset(store, arguments.staging, on_progress=_print_progress())
    report_result({"status": "completed", **asdict(report)})


if __name__ == "__main__":
    run(main)
