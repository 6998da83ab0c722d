"""The program of the transfer job: make a dataset version on the staging volume from the objects of a store.

python -m kubetrain_components.sync_dataset.transfer --dataset-uri URI --staging DIR [--check-writable DIR]
"""

import argparse
import gc
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.store import Access, ObjectChanged, ObjectStore
from kubetrain_components.sync_dataset.fetch import Fetch
from kubetrain_components.sync_dataset.manifest import Entry
from kubetrain_components.sync_dataset.partial_version import PartialVersion, partial_versions
from kubetrain_components.sync_dataset.plan import SyncPlan, check_case_conflicts, plan_sync
from kubetrain_components.sync_dataset.publish import (
    find_reusable,
    is_published,
    locked,
    note_use,
    partial_path,
    publish,
    published_versions,
)
from kubetrain_components.sync_dataset.report import SyncReport
from kubetrain_components.sync_dataset.writable import check_writable
from kubetrain_trainer.entry_point import run
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.progress_line import format_progress
from kubetrain_trainer.termination import report_result

MAX_LISTINGS = 3
DEFAULT_CONCURRENCY = 64
"""Maximum number of parallel requests; the actual number adapts to the store."""


@dataclass(frozen=True)
class SyncProgress:
    """The part of a version that has arrived."""

    objects: int
    bytes: int
    total_objects: int
    total_bytes: int
    unusable: int = 0
    """Number of keys that cannot be files; if there are any, the sync fails at the end."""


OnProgress = Callable[[SyncProgress], None]


def transfer_dataset(
    store: ObjectStore,
    staging: Path,
    concurrency: int = DEFAULT_CONCURRENCY,
    on_progress: OnProgress = lambda progress: None,
) -> SyncReport:
    """Make a version of the store's objects, downloading only those that the volume does not have yet.

    Raises:
        KubetrainError: if the dataset is missing, empty, changing or corrupt, or the volume cannot be written; no
            incomplete version is published.
    """
    started = time.monotonic()
    with _translated_disk_errors(staging), locked(staging):
        for _ in range(MAX_LISTINGS):
            with suppress(ObjectChanged):
                report = _make_version(store, staging, concurrency, on_progress)
                report.versions = len(published_versions(staging))
                report.seconds = round(time.monotonic() - started, 3)
                report.bytes_per_second = round(report.downloaded_bytes / max(report.seconds, 0.001))
                return report
    raise KubetrainError(
        f"{store.uri} is changing: it differed from its listing {MAX_LISTINGS} times; "
        "sync again when nothing writes to it"
    )


def _make_version(store: ObjectStore, staging: Path, concurrency: int, on_progress: OnProgress) -> SyncReport:
    plan = plan_from_listing(store, staging)
    report = SyncReport.of_plan(plan)
    checksums = {} if plan.exists else _fetch_all(store, staging, plan, concurrency, report, on_progress)
    plan.check_keys()
    if plan.exists:
        note_use(staging, plan)
    else:
        publish(staging, plan, checksums)
    return report


@contextmanager
def _translated_disk_errors(staging: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KubetrainError(
            f"cannot write to {staging} ({error.strerror or error}): choose a directory that you can write "
            "to, with enough space for the dataset"
        ) from error


def plan_from_listing(store: ObjectStore, staging: Path) -> SyncPlan:
    with _garbage_collection_paused():
        plan = plan_sync(store.uri, store.list())
    if is_published(staging, plan):
        return replace(plan, exists=True)
    return replace(plan, reuse=find_reusable(staging, plan.objects))


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Pause garbage collection: scanning a million new objects again and again takes a quarter of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _fetch_all(
    store: ObjectStore, staging: Path, plan: SyncPlan, concurrency: int, report: SyncReport, on_progress: OnProgress
) -> dict[str, str]:
    """Add all objects to the partial version and return their checksums by key."""
    partial = PartialVersion(partial_path(staging, plan))
    with partial.opened():
        if partial.ignores_case():
            check_case_conflicts(plan)
        checksums = _reuse_published(staging, plan, partial, report)
        checksums |= _reuse_interrupted(staging, plan, partial, report)
        missing = [each for each in plan.objects if each.key not in checksums]
        missing_bytes = sum(each.size for each in missing)
        _check_space(staging, missing_bytes)
        present = SyncProgress(
            len(checksums), plan.bytes - missing_bytes, len(plan.objects), plan.bytes, len(plan.unusable)
        )
        return checksums | _download(Fetch(store, missing, partial, concurrency), present, on_progress, report)


def _download(fetch: Fetch, present: SyncProgress, on_progress: OnProgress, report: SyncReport) -> dict[str, str]:
    """Download the missing objects and return their checksums by key."""
    checksums: dict[str, str] = {}
    on_progress(present)
    with closing(fetch.arriving()) as arrivals:
        for arrived in arrivals:
            for fetched in arrived:
                checksums[fetched.entry.object.key] = fetched.entry.checksum
                report.count(fetched)
            arrived_bytes = min(present.bytes + fetch.bytes, present.total_bytes)
            on_progress(replace(present, objects=present.objects + len(checksums), bytes=arrived_bytes))
    return checksums


def _check_space(staging: Path, needed: int) -> None:
    free = shutil.disk_usage(staging).free
    if needed > free:
        raise KubetrainError(
            f"{staging} has {free:,} bytes free, but the download needs {needed:,}: free space or choose another volume"
        )


def _reuse_published(staging: Path, plan: SyncPlan, partial: PartialVersion, report: SyncReport) -> dict[str, str]:
    """Reuse the objects that other versions have; return their checksums by key."""
    checksums: dict[str, str] = {}
    for each in plan.objects if plan.reuse else ():
        reusable = plan.reuse.get(each.key)
        if reusable is not None:
            data = staging / "versions" / reusable.version / "data"
            if Entry(each, reusable.checksum).has_right_size(data):
                method = partial.reuse(data / each.key, each.key)
                setattr(report, method, getattr(report, method) + 1)
                checksums[each.key] = reusable.checksum
    return checksums


def _reuse_interrupted(staging: Path, plan: SyncPlan, partial: PartialVersion, report: SyncReport) -> dict[str, str]:
    """Reuse the intact objects that interrupted syncs of this listing or an older one downloaded."""
    wanted, checksums = set(plan.fetch), dict[str, str]()
    for other in partial_versions(staging):
        for entry in other.recorded():
            if entry.object in wanted and entry.problem_in(other.data) is None:
                if other.path != partial.path:
                    partial.reuse(other.data / entry.object.key, entry.object.key)
                    partial.record_all([entry])
                wanted.remove(entry.object)
                checksums[entry.object.key] = entry.checksum
    report.resumed = len(checksums)
    return checksums


def _progress_printer() -> OnProgress:
    last = 0.0

    def print_progress(progress: SyncProgress) -> None:
        nonlocal last
        if progress.objects == progress.total_objects or time.monotonic() - last >= 0.5:
            last = time.monotonic()
            objects = f"{progress.objects}/{progress.total_objects}"
            print(format_progress(objects=objects, bytes=progress.bytes), flush=True)

    return print_progress


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a dataset version on the staging volume.")
    parser.add_argument("--dataset-uri", required=True, help="s3://BUCKET/PREFIX, or a directory")
    parser.add_argument("--staging", type=Path, required=True, help="folder of the versions")
    parser.add_argument("--endpoint-url", default="", help="URL of the S3 server (default: AWS)")
    parser.add_argument("--access", type=Access, choices=list(Access), default=Access.CREDENTIALS)
    parser.add_argument("--check-writable", type=Path, action="append", default=[], help="a folder to check first")
    arguments = parser.parse_args()
    for directory in arguments.check_writable:
        check_writable(directory)
    store = open_store(arguments.dataset_uri, arguments.endpoint_url, arguments.access)
    report = transfer_dataset(store, arguments.staging, on_progress=_progress_printer())
    report_result({"status": "completed", **asdict(report)})


if __name__ == "__main__":
    run(main)
