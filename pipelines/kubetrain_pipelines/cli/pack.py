"""`kubetrain pack`: pack an image folder into tar shards."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from kubetrain_components.interrupts import interrupted_by_sigterm
from kubetrain_components.pack_dataset.pack import OnSample, PackPlan, Sample, parse_size, plan_pack, write_pack
from kubetrain_components.sync_dataset.publish import read_version
from kubetrain_pipelines.cli.transfer_bar import transfer_bar


def pack_and_show(directory: Path, out: Path, *, shard_size: str, as_json: bool) -> None:
    started = time.monotonic()
    version = read_version(directory)
    plan = plan_pack(version.data if version else directory, out, parse_size(shard_size))
    for note in plan.notes:
        print(f"note: {note}", file=sys.stderr)
    with interrupted_by_sigterm(), progress_bar(plan) as on_sample:
        write_pack(plan, on_sample)
    facts = {**describe_pack(plan), "seconds": round(time.monotonic() - started, 3)}
    print(json.dumps(facts) if as_json else describe(facts))


@contextmanager
def progress_bar(plan: PackPlan) -> Iterator[OnSample]:
    """Show images, bytes, rate and time left on a terminal."""
    sizes = [sample.size for shard in plan.shards for sample in shard.samples]
    with transfer_bar() as bar:
        task = bar.add_task("pack", total=sum(sizes), counted=f"0/{len(sizes)} images")
        numbers = count(1)

        def show(sample: Sample) -> None:
            bar.update(task, advance=sample.size, counted=f"{next(numbers)}/{len(sizes)} images")

        yield show


def describe_pack(plan: PackPlan) -> dict[str, Any]:
    splits: dict[str, dict[str, int]] = {}
    for shard in plan.shards:
        split = splits.setdefault(shard.split, {"images": 0, "shards": 0, "bytes": 0})
        split["images"] += len(shard.samples)
        split["shards"] += 1
        split["bytes"] += shard.size
    totals = {name: sum(split[name] for split in splits.values()) for name in ("images", "shards", "bytes")}
    return {"out": str(plan.out), "classes": len(plan.classes), **totals, "splits": splits}


def describe(facts: dict[str, Any]) -> str:
    splits = ", ".join(f"{name} {split['images']} in {split['shards']}" for name, split in facts["splits"].items())
    return (
        f"packed {facts['images']} images of {facts['classes']} classes into {facts['shards']} shards, "
        f"{decimal(facts['bytes'])}: {splits}\n{facts['out']}"
    )
