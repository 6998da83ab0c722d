"""The transfer job's program: one dataset version from a store to the staging volume.

python -m kubetrain_components.sync_dataset.transfer --dataset-uri URI --staging DIR [--check-writable DIR]
"""

import argparse
import gc
import json
import shutil
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from operator import itemgetter
from pathlib import Path

from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.store import Access, ObjectChanged, ObjectStore, StoredObject
from kubetrain_components.sync_dataset.download import Fetched
from kubetrain_components.sync_dataset.fetch import Fetch
from kubetrain_components.sync_dataset.manifest import Entry
from kubetrain_components.sync_dataset.partial_version import PartialVersion, partial_versions
from kubetrain_components.sync_dataset.plan import SyncPlan, check_twins, plan_sync
from kubetrain_components.sync_dataset.publish import (
    find_reusable,
    is_published,
    locked,
    note_use,
    partial_path,
    publish,
    published_versions,
)
from kubetrain_components.sync_dataset.writable import check_writable
from kubetrain_trainer.entry_point import run
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.progress_line import format_progress
from kubetrain_trainer.termination import report_result

LISTING_ROUNDS = 3
FOLDERS_LENGTH = 2000  # of their JSON: the report must fit into a termination message
AFTER_SLASH = chr(ord("/") + 1)
DEFAULT_CONCURRENCY = 64
"""At most: how many it takes is found out."""


@dataclass(frozen=True)
class Progress:
    """How much of a version is there."""

    objects: int
    bytes: int
    of_objects: int
    of_bytes: int
    unusable: int = 0
    """Keys that cannot be files, for which the sync will fail."""


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
    cloned: int = 0
    """Taken from another version where the volume cannot link, sharing its blocks."""
    copied: int = 0
    """Taken from another version where the volume can do neither."""
    unverified: int = 0
    """Downloads that the store offered no checksum for: only their size was checked."""
    versions: int = 0
    """Those that are there now."""
    seconds: float = 0.0
    bytes_per_second: int = 0
    """That were downloaded."""


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
                    checksums = _bring_all(store, staging, plan, concurrency, report, on_progress)
                plan.check_keys()
                if plan.exists:
                    note_use(staging, plan)
                else:
                    publish(staging, plan, checksums)
                report.versions = len(published_versions(staging))
                report.seconds = round(time.monotonic() - started, 3)
                report.bytes_per_second = round(report.downloaded_bytes / max(report.seconds, 0.001))
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
    with _no_garbage_looked_for():
        plan = plan_sync(store.uri, store.list())
    if is_published(staging, plan):
        return replace(plan, exists=True)
    return replace(plan, reuse=find_reusable(staging, plan.objects))


@contextmanager
def _no_garbage_looked_for() -> Iterator[None]:
    """A million objects are no garbage, and are looked through in vain again and again: a quarter of all the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _empty_report(plan: SyncPlan) -> SyncReport:
    folders = list(_first_folders(plan.objects))
    shown = _fitting(folders)
    return SyncReport(
        digest=plan.digest,
        source=plan.dataset_uri,
        objects=len(plan.objects),
        bytes=plan.bytes,
        folders=shown,
        folders_cut=len(shown) < len(folders),
    )


def _first_folders(objects: Sequence[StoredObject]) -> Iterator[str]:
    """Each once; the keys of a folder follow one another."""
    at = 0
    while at < len(objects):
        folder, slash, _ = objects[at].key.partition("/")
        if slash:
            yield folder
            at = bisect_left(objects, f"{folder}{AFTER_SLASH}", at, key=itemgetter(0))
        else:
            at += 1


def _fitting(folders: Sequence[str]) -> list[str]:
    lengths = accumulate(len(json.dumps(folder)) + len(", ") for folder in folders)
    return [folder for folder, length in zip(folders, lengths, strict=True) if length <= FOLDERS_LENGTH]


def _bring_all(
    store: ObjectStore, staging: Path, plan: SyncPlan, concurrency: int, report: SyncReport, on_progress: OnProgress
) -> dict[str, str]:
    """All objects to the partial version; their checksums, by key."""
    partial = PartialVersion(partial_path(staging, plan))
    with partial.begun():
        if partial.takes_names_for_one_another():
            check_twins(plan)
        checksums = _reuse_published(staging, plan, partial, report)
        checksums |= _reuse_interrupted(staging, plan, partial, report)
        missing = [each for each in plan.objects if each.key not in checksums]
        _check_space(staging, sum(each.size for each in missing))
        with closing(_fetched(Fetch(store, missing, partial, concurrency), plan, missing, on_progress)) as arrivals:
            for fetched in arrivals:
                checksums[fetched.entry.object.key] = fetched.entry.checksum
                _count(fetched, report)
    return checksums


def _fetched(
    fetch: Fetch, plan: SyncPlan, missing: Sequence[StoredObject], on_progress: OnProgress
) -> Generator[Fetched, None, None]:
    """What arrives, telling how far it is meanwhile."""
    objects, there = len(plan.objects) - len(missing), plan.bytes - sum(each.size for each in missing)
    progress = Progress(objects, there, len(plan.objects), plan.bytes, len(plan.unusable))
    on_progress(progress)
    with closing(fetch.arriving()) as arrivals:
        for arrived in arrivals:
            yield from arrived
            objects += len(arrived)
            on_progress(replace(progress, objects=objects, bytes=min(there + fetch.bytes, progress.of_bytes)))


def _check_space(staging: Path, needed: int) -> None:
    free = shutil.disk_usage(staging).free
    if needed > free:
        raise KubetrainError(
            f"{staging} has {free:,} bytes free, and {needed:,} are to be downloaded: "
            "make room, or choose another volume"
        )


def _reuse_published(staging: Path, plan: SyncPlan, partial: PartialVersion, report: SyncReport) -> dict[str, str]:
    """Link what other versions have; their checksums come with it."""
    checksums: dict[str, str] = {}
    for each in plan.objects if plan.reuse else ():
        reusable = plan.reuse.get(each.key)
        if reusable is not None:
            data = staging / "versions" / reusable.version / "data"
            if Entry(each, reusable.checksum).has_its_size(data):
                way = partial.take(data / each.key, each.key)
                setattr(report, way, getattr(report, way) + 1)
                checksums[each.key] = reusable.checksum
    return checksums


def _reuse_interrupted(staging: Path, plan: SyncPlan, partial: PartialVersion, report: SyncReport) -> dict[str, str]:
    """Take what interrupted syncs downloaded, of this listing or an older one, and is still what was verified."""
    wanted, checksums = set(plan.fetch), dict[str, str]()
    for left in partial_versions(staging):
        for entry in left.recorded():
            if entry.object in wanted and entry.problem_in(left.data) is None:
                if left.path != partial.path:
                    partial.take(left.data / entry.object.key, entry.object.key)
                    partial.record_all([entry])
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
    parser.add_argument("--dataset-uri", required=True, help="s3://BUCKET/PREFIX, or a directory")
    parser.add_argument("--staging", type=Path, required=True, help="the folder that holds the versions")
    parser.add_argument("--endpoint-url", default="", help="S3 server; default AWS")
    parser.add_argument("--access", type=Access, choices=list(Access), default=Access.CREDENTIALS)
    parser.add_argument("--check-writable", type=Path, action="append", default=[], help="fail at once where it is not")
    arguments = parser.parse_args()
    for directory in arguments.check_writable:
        check_writable(directory)
    store = open_store(arguments.dataset_uri, arguments.endpoint_url, arguments.access)
    report = transfer_dataset(store, arguments.staging, on_progress=_print_progress())
    report_result({"status": "completed", **asdict(report)})


if __name__ == "__main__":
    run(main)
