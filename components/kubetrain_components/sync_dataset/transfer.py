"""The program of the transfer job: make a dataset version on the staging volume from the objects of a store.

python -m kubetrain_components.sync_dataset.transfer --dataset-uri URI --staging DIR [--check-writable DIR] \
    [--weights URI --output DIR] [--cache-bytes SIZE]
"""

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kubetrain_components.object_store.claim_uri import SCHEME
from kubetrain_components.object_store.filtered_store import filtered
from kubetrain_components.object_store.open_store import is_inside, open_store
from kubetrain_components.object_store.store import Access, ObjectChanged, ObjectStore, StoredObject, StoreError
from kubetrain_components.sync_dataset.case_conflicts import check_case_conflicts
from kubetrain_components.sync_dataset.download import NotAsListed
from kubetrain_components.sync_dataset.fetch import Fetch
from kubetrain_components.sync_dataset.in_place import list_in_place
from kubetrain_components.sync_dataset.leftovers import check_space, leftovers
from kubetrain_components.sync_dataset.locks import version_locked
from kubetrain_components.sync_dataset.partial_version import PartialVersion
from kubetrain_components.sync_dataset.plan import Objects, SyncPlan, plan_sync
from kubetrain_components.sync_dataset.progress import OnProgress, SyncProgress, progress_printer
from kubetrain_components.sync_dataset.publish import (
    find_reusable,
    is_published,
    note_use,
    partial_path,
    publish,
    published_versions,
)
from kubetrain_components.sync_dataset.report import SyncReport
from kubetrain_components.sync_dataset.reuse import Arrivals, OnResumed
from kubetrain_components.sync_dataset.shards_in_store import ShardsInStore
from kubetrain_components.sync_dataset.weights import FOLDER, find_weights, place_of
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.processes.entry_point import run
from kubetrain_trainer.termination import report_result

MAX_LISTINGS = 3


def transfer_dataset(
    store: ObjectStore, staging: Path, concurrency: int | None = None, on_progress: OnProgress = lambda progress: None
) -> SyncReport:
    """Make a version of the store's objects, downloading only those that the volume does not have yet.

    Args:
        concurrency: Number of parallel requests; by default, the number adapts to the store.

    Raises:
        KubetrainError: if the dataset is missing, empty, changing or corrupt, or the volume cannot be written; no
            incomplete version is published.
    """
    _check_outside(store, staging)
    with _translated_disk_errors(staging), _readable_by_all():
        for _ in range(MAX_LISTINGS):
            try:
                return _make_version(store, staging, concurrency, on_progress)
            except ObjectChanged as error:
                cause = error
    raise KubetrainError(
        f"{store.uri} is changing: it differed from its listing {MAX_LISTINGS} times, the last time because "
        f"{describe_change(store, cause)}; sync again when nothing writes to it"
    ) from cause


def _make_version(store: ObjectStore, staging: Path, concurrency: int | None, on_progress: OnProgress) -> SyncReport:
    started = time.monotonic()
    (staging / "versions").mkdir(parents=True, exist_ok=True)
    plan = _list(store, staging / "versions")
    report = SyncReport.of_plan(plan)
    with version_locked(staging, plan.digest) as waited:
        if is_published(staging, plan):
            plan.check_keys()
            note_use(staging, plan)
        else:
            partial = PartialVersion(partial_path(staging, plan))
            with partial.opened(plan.dataset_uri):
                arrivals = _fetch_all(store, staging, plan, partial, concurrency, report, on_progress)
                plan.check_keys()
                publish(staging, plan, partial, arrivals.checksums)
    report.versions, report.leftovers = len(published_versions(staging)), len(leftovers(staging))
    report.set_seconds(time.monotonic() - started - waited)
    return report


@contextmanager
def _readable_by_all() -> Iterator[None]:
    """Let pods of any user read the folders, as they may read the files, under any umask."""
    before = os.umask(0)
    os.umask(before & 0o022)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def _translated_disk_errors(staging: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        wanted = f"use {error.filename}" if error.filename else f"write to {staging}"
        raise KubetrainError(
            f"cannot {wanted} ({error.strerror or error}): choose a directory that you can read and write, with enough "
            "space for the dataset"
        ) from error


def _check_outside(store: ObjectStore, staging: Path) -> None:
    if is_inside(staging.absolute().as_uri(), store.uri):
        raise KubetrainError(
            f"{staging} is inside the dataset {store.uri}, so versions would become part of the next version: "
            "choose a directory outside"
        )


@dataclass(frozen=True, kw_only=True)
class SyncPreview:
    """The plan of a sync, and how much of it is left to do."""

    plan: SyncPlan
    exists: bool
    to_download: int = 0
    to_download_bytes: int = 0
    to_link: int = 0


def preview_sync(store: ObjectStore, staging: Path) -> SyncPreview:
    _check_outside(store, staging)
    plan = _list(store)
    plan.check_keys()
    with _translated_disk_errors(staging):
        return _preview(staging, plan)


def _preview(staging: Path, plan: SyncPlan) -> SyncPreview:
    if is_published(staging, plan):
        return SyncPreview(plan=plan, exists=True)
    count = size = 0
    for each, reusable in find_reusable(staging, plan.objects):
        if reusable is None:
            count, size = count + 1, size + each.size
    to_link = len(plan.objects) - count
    return SyncPreview(plan=plan, exists=False, to_download=count, to_download_bytes=size, to_link=to_link)


def _list(store: ObjectStore, folder: Path | None = None) -> SyncPlan:
    with _garbage_collection_paused():
        return plan_sync(store.uri, store.list(), folder)


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Pause garbage collection: scanning a million new objects again and again takes a quarter of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _fetch_all(
    store: ObjectStore,
    staging: Path,
    plan: SyncPlan,
    partial: PartialVersion,
    concurrency: int | None,
    report: SyncReport,
    on_progress: OnProgress,
) -> Arrivals:
    """Add all objects to the partial version."""
    if partial.ignores_case():
        check_case_conflicts(plan, partial.is_one_file)
    arrivals = Arrivals(staging, plan, partial, report)
    missing = arrivals.reuse_published()
    missing = arrivals.reuse_interrupted(missing, _resuming(_progress(plan, missing), on_progress))
    fetch = Fetch(store, missing, partial, concurrency)
    check_space(staging, fetch.needed_bytes)
    _download(fetch, _progress(plan, missing), on_progress, report, arrivals)
    arrivals.check_etags()
    return arrivals


def _progress(plan: SyncPlan, missing: Objects) -> SyncProgress:
    total, size = len(plan.objects), plan.bytes
    left = sum(item.size for item in missing)
    return SyncProgress(total - len(missing), size - left, total, size, len(plan.unusable))


def _resuming(present: SyncProgress, on_progress: OnProgress) -> OnResumed:
    def show(objects: int, hashed: int) -> None:
        size = min(present.bytes + hashed, present.total_bytes)
        on_progress(replace(present, objects=present.objects + objects, bytes=size, is_resuming=True))

    return show


def _download(
    fetch: Fetch, present: SyncProgress, on_progress: OnProgress, report: SyncReport, arrivals: Arrivals
) -> None:
    on_progress(present)
    with closing(fetch.arriving()) as arriving:
        for arrived in arriving:
            for fetched in arrived:
                arrivals.add(fetched)
            arrived_bytes = min(present.bytes + fetch.bytes, present.total_bytes)
            on_progress(replace(present, objects=present.objects + report.downloaded, bytes=arrived_bytes))


def _bring_weights(uri: str, endpoint: str, output: Path) -> str:
    """Return where the weights are under the root of the outputs."""
    store, name = find_weights(uri, endpoint)
    print(f"initial weights: {store.uri}", flush=True)
    version = transfer_dataset(store, output / FOLDER, on_progress=progress_printer())
    return place_of(version.digest, name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a dataset version on the staging volume.")
    parser.add_argument("--dataset-uri", required=True, help="s3://BUCKET/PREFIX, a directory, or pvc://CLAIM/PATH")
    parser.add_argument("--staging", type=Path, required=True, help="folder of the versions, or the mount of CLAIM")
    parser.add_argument("--s3-endpoint", default="", help="URL of the S3 server (default: AWS)")
    parser.add_argument("--access", type=Access, choices=list(Access), default=Access.CREDENTIALS)
    parser.add_argument("--include", action="append", default=[], help="pattern of the objects to copy")
    parser.add_argument("--exclude", action="append", default=[], help="pattern of the objects not to copy")
    parser.add_argument("--cache-bytes", type=int, default=0, help="list tar shards, which pods read through a cache")
    parser.add_argument("--weights", default="", help="weights to start from: an object in S3, or a published model")
    parser.add_argument("--output", type=Path, help="root of the outputs, for the weights, and the listing of CLAIM")
    parser.add_argument("--check-writable", type=Path, action="append", default=[], help="a folder to check first")
    arguments = parser.parse_args()
    for directory in arguments.check_writable:
        check_writable(directory)
    if os.access(arguments.staging, os.W_OK):
        tempfile.tempdir = str(arguments.staging)  # long listings take space, which the pod's own disk may not have
    weights = {}
    if arguments.weights:
        weights["weights"] = _bring_weights(arguments.weights, arguments.s3_endpoint, arguments.output)
    if arguments.dataset_uri.startswith(SCHEME):
        report = list_in_place(arguments.dataset_uri, arguments.staging, arguments.output)
    else:
        store = open_store(arguments.dataset_uri, arguments.s3_endpoint, arguments.access)
        store = filtered(store, arguments.include, arguments.exclude)
        if arguments.cache_bytes:
            store = ShardsInStore(store, arguments.cache_bytes)
        report = transfer_dataset(store, arguments.staging, on_progress=progress_printer())
    report_result({"status": "completed", **asdict(report), **weights})


def describe_change(store: ObjectStore, error: ObjectChanged) -> str:
    """Return what is known about the object that differs from its listing."""
    if not isinstance(error, NotAsListed):
        return str(error)
    wanted = error.wanted
    try:
        found = store.find(wanted.key)
    except StoreError as failure:
        return f"{error} (listed with ETag {wanted.etag!r}; asking for the present one failed: {failure})"
    return f"object {wanted.key!r} is listed with ETag {wanted.etag!r}, but {_present(wanted, found)}"


def _present(wanted: StoredObject, found: StoredObject | None) -> str:
    if found is None:
        return "does not exist (if it stays so, the store lists what it does not have: delete or upload the object)"
    if found.etag != wanted.etag:
        return f"has ETag {found.etag!r}"
    return "the store rejects requests for this ETag (does a proxy between you and the store change headers?)"


def check_writable(directory: Path) -> None:
    """
    Raises:
        KubetrainError: if the user cannot write, with the remedy.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".kubetrain-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise KubetrainError(
            f"user {os.getuid()} cannot write to the {directory.name} PVC mounted at {directory} "
            f"({error.strerror or error}): its storage ignores fsGroup, so change the owner or mode of its folder, set "
            "pods.user to its owner, or use another storage class"
        ) from error


if __name__ == "__main__":
    run(main)
