"""`kubetrain sync`: copy a dataset into a directory as a version."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from kubetrain_components.object_store.filtered_store import filtered
from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.store import Access
from kubetrain_components.sync_dataset.progress import OnProgress, SyncProgress
from kubetrain_components.sync_dataset.report import SyncReport
from kubetrain_components.sync_dataset.transfer import SyncPreview, preview_sync, transfer_dataset
from kubetrain_trainer.errors import InvalidSetting

LINE_SECONDS = 10.0


def sync_and_show(
    source: str,
    directory: Path,
    *,
    s3_endpoint: str,
    anonymous: bool,
    requester_pays: bool,
    concurrency: int | None,
    dry_run: bool,
    include: Sequence[str],
    exclude: Sequence[str],
    as_json: bool,
) -> None:
    store = open_store(source, s3_endpoint, _access(anonymous=anonymous, requester_pays=requester_pays))
    store = filtered(store, include, exclude)
    if dry_run:
        facts = describe_preview(preview_sync(store, directory))
        print(json.dumps(facts) if as_json else "\n".join(f"{name:18} {value}" for name, value in facts.items()))
        return
    with progress_bar() if sys.stderr.isatty() else progress_lines() as on_progress:
        report = transfer_dataset(store, directory, concurrency, on_progress)
    print(json.dumps(asdict(report)) if as_json else describe(report, directory))


def _access(*, anonymous: bool, requester_pays: bool) -> Access:
    if anonymous and requester_pays:
        raise InvalidSetting("--requester-pays needs credentials, but --anonymous sends none: leave one of them out")
    if anonymous:
        return Access.ANONYMOUS
    return Access.REQUESTER_PAYS if requester_pays else Access.CREDENTIALS


@contextmanager
def progress_bar() -> Iterator[OnProgress]:
    """Show objects, bytes, rate and time left on a terminal."""
    # Imported here because the import takes time, and logs need no bar.
    from kubetrain_pipelines.cli.transfer_bar import transfer_bar

    with transfer_bar() as bar:
        task = bar.add_task("sync", total=None, counted="listing")
        was_resuming = True

        def show(progress: SyncProgress) -> None:
            nonlocal was_resuming
            if was_resuming and not progress.is_resuming:
                # Files from an earlier sync must not count as speed.
                bar.reset(task, completed=progress.bytes)
            was_resuming = progress.is_resuming
            bar.update(task, completed=progress.bytes, total=progress.total_bytes, counted=count_of(progress))

        yield show


@contextmanager
def progress_lines() -> Iterator[OnProgress]:
    """Print a line for logs every ten seconds."""
    printed_at = time.monotonic()
    before: int | None = None
    was_resuming = True

    def show(progress: SyncProgress) -> None:
        nonlocal printed_at, before, was_resuming
        if before is None or (was_resuming and not progress.is_resuming):
            before = progress.bytes  # files from an earlier sync must not count as speed
        was_resuming = progress.is_resuming
        seconds = time.monotonic() - printed_at
        if seconds >= LINE_SECONDS:
            print(describe_progress(progress, (progress.bytes - before) / seconds), file=sys.stderr, flush=True)
            printed_at, before = time.monotonic(), progress.bytes

    yield show


def describe_progress(progress: SyncProgress, rate: float) -> str:
    done = f"{count_of(progress)}, {decimal(progress.bytes)} of {decimal(progress.total_bytes)}"
    if progress.is_resuming:
        return f"{done}, checking what an earlier sync downloaded, {decimal(round(rate))}/s"
    if not rate:
        return f"{done}, no data arriving"
    left = timedelta(seconds=round((progress.total_bytes - progress.bytes) / rate))
    return f"{done}, {decimal(round(rate))}/s, {left} left"


def count_of(progress: SyncProgress) -> str:
    unusable = f" ({progress.unusable} more cannot be files: the sync will fail)" if progress.unusable else ""
    return f"{progress.objects}/{progress.total_objects} objects{unusable}"


def describe_preview(found: SyncPreview) -> dict[str, Any]:
    return {
        "digest": found.plan.digest,
        "source": found.plan.dataset_uri,
        "objects": len(found.plan.objects),
        "bytes": found.plan.bytes,
        "exists": found.exists,
        "to_download": found.to_download,
        "to_download_bytes": found.to_download_bytes,
        "to_link": found.to_link,
    }


def describe(report: SyncReport, directory: Path) -> str:
    done = (
        f"downloaded {report.downloaded} ({decimal(report.downloaded_bytes)})"
        if report.downloaded
        else "nothing to download"
    )
    notes = [
        done,
        f"{report.resumed} downloaded earlier" if report.resumed else "",
        f"{report.linked} linked" if report.linked else "",
        f"{report.cloned} cloned" if report.cloned else "",
        f"{report.copied} copied" if report.copied else "",
    ]
    if report.unverified:
        notes.append(f"{report.unverified} verified by size only, because the source has no usable checksums for them")
    return (
        f"dataset {report.digest}: {report.objects} objects, {decimal(report.bytes)}; "
        f"{', '.join(note for note in notes if note)}\n{directory / 'versions' / report.digest}"
    )
