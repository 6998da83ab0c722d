"""The program of the pruning job: delete unused versions on the staging volume.

python -m kubetrain_components.sync_dataset.prune_versions --staging DIR --keep 3 [--current DIGEST] [--in-use PATH]
"""

import argparse
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from kubetrain_components.expose_dataset.prune import Prunable, PruneDecision, Use, plan_pruning, staged_versions
from kubetrain_components.sync_dataset.leftovers import PRUNED, delete_tree, leftovers
from kubetrain_components.sync_dataset.locks import InUse, delete_lock, version_locked
from kubetrain_components.sync_dataset.publish import published_versions
from kubetrain_trainer.processes.entry_point import run
from kubetrain_trainer.termination import report_result

VOLUME = "staging"


def prune_versions(staging: Path, *, keep: int, current: str, in_use: Iterable[str]) -> list[PruneDecision]:
    """Delete unused versions, except those that a sync is making or checking.

    Args:
        in_use: Paths on the volume that may be in use.
    """
    paths = list(in_use)
    uses = [Use(by="something that mounts it", claim=VOLUME, sub_path=path) for path in paths]
    for left in leftovers(staging, paths):
        delete_tree(left)
    published = [(version, _time_of(version.path)) for version in published_versions(staging)]
    versions = [version for version, used in published if used]
    last_used = {version.path.name: used for version, used in published if used}
    items = staged_versions([version.header for version in versions], VOLUME, last_used)
    decisions = plan_pruning(items, uses, keep=keep, current=current, now=datetime.now(UTC))
    return [_carry_out(staging, decision, last_used) for decision in decisions]


def _carry_out(staging: Path, decision: PruneDecision, used_at: dict[str, str]) -> PruneDecision:
    """Delete the version if that was decided, unless a sync uses it now or has used it since."""
    item = decision.item
    if not decision.deletes:
        return decision
    try:
        with version_locked(staging, item.digest, wait=False):
            used = _time_of(staging / item.name)
            if not used:
                delete_lock(staging, item.digest)
                return replace(decision, deletes=False, reason="another pruning deleted it")
            if used == used_at[item.digest]:
                _delete(staging, item)
                return decision
    except InUse:
        pass
    return replace(decision, deletes=False, reason="a sync uses it")


def _time_of(version: Path) -> str:
    """Return the time of the last use, or an empty string if another pruning deleted the version."""
    try:
        return datetime.fromtimestamp(version.stat().st_mtime, UTC).isoformat()
    except FileNotFoundError:
        return ""


def _delete(staging: Path, item: Prunable) -> None:
    """Rename a version, then delete it, so that its folder is never incomplete."""
    version = staging / item.name
    # The time keeps it apart from what an earlier pruning of this digest could not delete.
    aside = version.with_name(f"{PRUNED}{version.name}-{time.time_ns()}")
    version.rename(aside)
    delete_lock(staging, item.digest)
    delete_tree(aside)


def main() -> None:
    parser = argparse.ArgumentParser(description="Delete unused versions on the staging volume.")
    parser.add_argument("--staging", type=Path, required=True, help="folder with the versions")
    parser.add_argument("--keep", type=int, required=True, help="minimum number of versions to keep of each dataset")
    parser.add_argument("--current", default="", help="digest of the version of this run, which is kept")
    parser.add_argument(
        "--in-use", action="append", default=[], help="path on the volume that may be in use (repeatable)"
    )
    arguments = parser.parse_args()
    decisions = prune_versions(
        arguments.staging, keep=arguments.keep, current=arguments.current, in_use=arguments.in_use
    )
    print(*decisions, sep="\n", flush=True)
    report_result({"status": "completed"})


if __name__ == "__main__":
    run(main)
