"""`kubetrain pack`: pack an image folder into tar shards."""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

from rich.filesize import decimal
from rich.progress import Progress

from kubetrain_components.interrupts import interrupted_by_sigterm
from kubetrain_components.pack_dataset.pack import write_pack
from kubetrain_components.pack_dataset.plan import PackPlan, Sample, parse_size, plan_pack, with_copies
from kubetrain_components.pack_dataset.smaller_images import Copied, copy_images
from kubetrain_components.sync_dataset.publish import read_version
from kubetrain_pipelines.cli.transfer_bar import transfer_bar
from kubetrain_trainer.some_of import some_of


def pack_and_show(directory: Path, out: Path, *, shard_size: str, shorter_side: int, as_json: bool) -> None:
    started = time.monotonic()
    version = read_version(directory)
    plan = plan_pack(version.data if version else directory, out, parse_size(shard_size))
    show_notes(plan.notes)
    with interrupted_by_sigterm(), transfer_bar() as bar:
        packing = Packing(bar, shorter_side)
        written = write_pack(plan, packing.show, packing.prepare)
    show_notes(packing.notes())
    facts = {**describe_pack(written), **packing.facts(), "seconds": round(time.monotonic() - started, 3)}
    print(json.dumps(facts) if as_json else describe(facts))


def show_notes(notes: Iterable[str]) -> None:
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


class Packing:
    """Shows images, bytes, rate and time left on a terminal, first of making images smaller, then of packing them."""

    def __init__(self, bar: Progress, shorter_side: int) -> None:
        self._bar, self._shorter_side = bar, shorter_side
        self._copied: dict[Copied, list[str]] = defaultdict(list)

    def prepare(self, plan: PackPlan, copies: Path) -> PackPlan:
        self._start(plan)
        if not self._shorter_side:
            return plan
        with closing(copy_images(plan, copies, self._shorter_side)) as done:
            for sample, copied in done:
                self._copied[copied].append(sample.path)
                self.show(sample)
        prepared = with_copies(plan, copies)
        self._start(prepared)
        return prepared

    def _start(self, plan: PackPlan) -> None:
        sizes = [sample.size for shard in plan.shards for sample in shard.samples]
        self._images, self._numbers = len(sizes), count(1)
        self._task = self._bar.add_task("pack", total=sum(sizes), counted=f"0/{len(sizes)} images")

    def show(self, sample: Sample) -> None:
        self._bar.update(self._task, advance=sample.size, counted=f"{next(self._numbers)}/{self._images} images")

    def facts(self) -> dict[str, Any]:
        return {"smaller": len(self._copied[Copied.SMALLER])} if self._shorter_side else {}

    def notes(self) -> Iterable[str]:
        if damaged := sorted(self._copied[Copied.UNDECODED]):
            yield f"packed as they are, because they cannot be decoded: {some_of(damaged)}"


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
    smaller = f", {facts['smaller']} of them made smaller," if facts.get("smaller") else ""
    return (
        f"packed {facts['images']} images{smaller} of {facts['classes']} classes into {facts['shards']} shards, "
        f"{decimal(facts['bytes'])}: {splits}\n{facts['out']}"
    )
