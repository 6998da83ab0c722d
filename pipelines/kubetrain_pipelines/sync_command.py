"""`kubetrain sync`: one dataset version into a directory."""

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.sync_dataset.transfer import SyncReport, plan_from_listing, transfer_dataset


def sync_and_show(
    source: str, directory: Path, *, endpoint_url: str, anonymous: bool, concurrency: int, dry_run: bool, as_json: bool
) -> None:
    store = open_store(source, endpoint_url, anonymous)
    console = Console(stderr=True)
    if dry_run:
        plan = plan_from_listing(store, directory)
        facts = {
            "digest": plan.digest,
            "source": plan.source,
            "objects": len(plan.objects),
            "bytes": plan.bytes,
            "to_download": len(plan.fetch),
            "to_download_bytes": sum(each.size for each in plan.fetch),
            "to_link": len(plan.reuse),
        }
        print(json.dumps(facts) if as_json else "\n".join(f"{name:18} {value}" for name, value in facts.items()))
        return
    with Progress(
        MofNCompleteColumn(), BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=console, transient=True
    ) as progress:
        task = progress.add_task("sync", total=None)
        report = transfer_dataset(
            store,
            directory,
            concurrency,
            lambda done, of, size: progress.update(task, completed=done, total=of),
        )
    print(json.dumps(asdict(report)) if as_json else describe(report, directory))


def describe(report: SyncReport, directory: Path) -> str:
    done = (
        f"downloaded {report.downloaded} ({decimal(report.downloaded_bytes)})"
        if report.downloaded
        else "nothing to download"
    )
    notes = [
        done,
        f"{report.linked} linked" if report.linked else "",
        f"{report.copied} copied" if report.copied else "",
    ]
    if report.unverified:
        notes.append(f"{report.unverified} checked by size only: the source offers no checksum for them")
    return (
        f"dataset {report.digest}: {report.objects} objects, {decimal(report.bytes)}; "
        f"{', '.join(note for note in notes if note)}\n{directory / 'versions' / report.digest}"
    )
