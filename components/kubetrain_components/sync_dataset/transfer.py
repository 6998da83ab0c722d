"""The transfer job's program: one dataset version from a store to the staging volume.

python -m kubetrain_components.sync_dataset.transfer --source s3://BUCKET/PREFIX --staging DIR
"""

import argparse
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.store import ObjectChanged, ObjectStore, StoredObject, StoreError
from kubetrain_components.sync_dataset.plan import SyncPlan, plan_sync
from kubetrain_components.sync_dataset.publish import (
    DatasetVersion,
    file_checksum,
    locked,
    partial_path,
    publish,
    published_versions,
    read_version,
)
from kubetrain_trainer.entry_point import run
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.progress_line import format_progress
from kubetrain_trainer.termination import report_result

LISTING_ROUNDS = 3
ATTEMPTS_PER_OBJECT = 3
SHOWN_FOLDERS = 20
DEFAULT_CONCURRENCY = 16

OnProgress = Callable[[int, int, int], None]
"""Called with the objects done, the objects in all, and the bytes done."""


@dataclass(kw_only=True)
class SyncReport:
    """What a sync found and did."""

    digest: str
    source: str
    objects: int
    bytes: int
    folders: list[str]
    """The first parts of the keys, up to a number that people would read."""
    downloaded: int = 0
    downloaded_bytes: int = 0
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
    on_progress: OnProgress = lambda done, of, size: None,
) -> SyncReport:
    """Make the version that the source is now, from what is there already and the rest downloaded.

    Raises:
        KubetrainError: where the source is missing, empty, changing or corrupt; no version is left half made.
    """
    started = time.monotonic()
    with locked(staging):
        for _ in range(LISTING_ROUNDS):
            plan = plan_from_listing(store, staging)
            report = _empty_report(plan)
            try:
                if read_version(staging / "versions" / plan.digest) is None:
                    _make_version(store, staging, plan, concurrency, report, on_progress)
                report.seconds = round(time.monotonic() - started, 3)
                return report
            except ObjectChanged:
                continue
    raise KubetrainError(
        f"the source {store.uri} is changing: it differed from its listing {LISTING_ROUNDS} times; "
        "sync again when nothing writes to it"
    )


def _empty_report(plan: SyncPlan) -> SyncReport:
    folders = sorted({each.key.partition("/")[0] for each in plan.objects if "/" in each.key})
    return SyncReport(
        digest=plan.digest,
        source=plan.source,
        objects=len(plan.objects),
        bytes=plan.bytes,
        folders=folders[:SHOWN_FOLDERS],
    )


def plan_from_listing(store: ObjectStore, staging: Path) -> SyncPlan:
    known = {each: version.path.name for version in published_versions(staging) for each in version.objects()}
    return plan_sync(store.uri, store.list(), known)


def _make_version(
    store: ObjectStore, staging: Path, plan: SyncPlan, concurrency: int, report: SyncReport, on_progress: OnProgress
) -> DatasetVersion:
    partial = partial_path(staging, plan)
    data, unfinished = partial / "data", partial / "unfinished"
    unfinished.mkdir(parents=True, exist_ok=True)
    checksums = _reuse_files(staging, plan, data, report)
    missing = [each for each in plan.fetch if not (data / each.key).is_file()]
    # Files of an earlier, interrupted sync of this very listing: verified when they got their names.
    checksums |= {each.key: file_checksum(data / each.key) for each in plan.fetch if (data / each.key).is_file()}
    done_bytes = plan.bytes - sum(each.size for each in missing)
    with ThreadPoolExecutor(concurrency) as pool:
        fetches = {pool.submit(_fetch, store, each, data / each.key, unfinished): each for each in missing}
        try:
            for fetch in as_completed(fetches):
                checksums[fetches[fetch].key] = _counted(fetch, report)
                done_bytes += fetches[fetch].size
                on_progress(len(checksums), len(plan.objects), done_bytes)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    shutil.rmtree(unfinished)
    return publish(staging, plan, checksums)


def _reuse_files(staging: Path, plan: SyncPlan, data: Path, report: SyncReport) -> dict[str, str]:
    """Link what other versions have; their checksums come with it."""
    checksums: dict[str, str] = {}
    for digest in sorted(set(plan.reuse.values())):
        version = read_version(staging / "versions" / digest)
        assert version is not None, "the plan names published versions"
        for entry in version.entries():
            if plan.reuse.get(entry["key"]) == digest:
                _link(version.data / entry["key"], data / entry["key"], report)
                checksums[entry["key"]] = entry["checksum"]
    return checksums


def _link(source: Path, target: Path, report: SyncReport) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
        report.linked += 1
    except OSError:
        shutil.copy2(source, target)
        report.copied += 1


def _counted(fetch: "Future[_Fetched]", report: SyncReport) -> str:
    fetched = fetch.result()
    report.downloaded += 1
    report.downloaded_bytes += fetched.size
    report.unverified += not fetched.is_verified
    return fetched.checksum


@dataclass(frozen=True)
class _Fetched:
    size: int
    checksum: str
    is_verified: bool


def _fetch(store: ObjectStore, wanted: StoredObject, target: Path, unfinished: Path) -> _Fetched:
    """Download one object; its file gets its name when the bytes are known to be right."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = unfinished / hashlib.sha256(wanted.key.encode()).hexdigest()
    for _ in range(ATTEMPTS_PER_OBJECT):
        content = store.read(wanted.key, wanted.etag)
        sha256, md5, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
        with temporary.open("wb") as file:
            for chunk in content.chunks:
                sha256.update(chunk)
                md5.update(chunk)
                size += file.write(chunk)
        if size == wanted.size and content.md5 in (None, md5.hexdigest()):
            temporary.chmod(0o444)
            temporary.rename(target)
            return _Fetched(size, f"sha256:{sha256.hexdigest()}", content.md5 is not None)
    temporary.unlink()
    raise StoreError(
        f"{store.uri} object {wanted.key!r} arrived corrupt {ATTEMPTS_PER_OBJECT} times: "
        "it is damaged in the store, or something on the way damages it"
    )


def _print_progress() -> OnProgress:
    last = 0.0

    def print_sometimes(done: int, of: int, size: int) -> None:
        nonlocal last
        if done == of or time.monotonic() - last >= 0.5:
            last = time.monotonic()
            print(format_progress(objects=f"{done}/{of}", bytes=size), flush=True)

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
