"""The program of the pruning job: delete unused versions on the staging volume.

python -m kubetrain_components.sync_dataset.prune_versions --staging DIR --keep 3 [--current DIGEST] [--in-use PATH]
"""

import argparse
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from kubetrain_components.expose_dataset.prune import PrunePlan, Use, plan_pruning, staged_versions
from kubetrain_components.sync_dataset.publish import DatasetVersion, locked, published_versions
from kubetrain_trainer.entry_point import run
from kubetrain_trainer.termination import report_result

VOLUME = "staging"
PRUNED = ".pruned-"


def prune_versions(staging: Path, *, keep: int, current: str, in_use: Iterable[str], now: datetime) -> PrunePlan:
    """Delete unused versions, unless a sync is running, which may need a version that in_use does not list.

    Args:
        in_use: Paths on the volume that may be in use.

    Raises:
        KubetrainError: if a sync is running.
    """
    uses = [Use(by="something that mounts it", claim=VOLUME, sub_path=path) for path in in_use]
    with locked(staging, wait=False):
        for left in (staging / "versions").glob(f"{PRUNED}*"):
            shutil.rmtree(left)
        versions = published_versions(staging)
        last_used = {version.path.name: _last_used(version) for version in versions}
        items = staged_versions([version.header for version in versions], [VOLUME], last_used)
        plan = plan_pruning(items, uses, keep=keep, current=current, now=now)
        for item in plan.delete:
            _delete(staging / item.name)
    return plan


def _last_used(version: DatasetVersion) -> str:
    return datetime.fromtimestamp(version.path.stat().st_mtime, UTC).isoformat()


def _delete(version: Path) -> None:
    """Rename a version, then delete it, so that its folder is never incomplete."""
    aside = version.with_name(f"{PRUNED}{version.name}")
    version.rename(aside)
    shutil.rmtree(aside)


def main() -> None:
    parser = argparse.ArgumentParser(description="Delete unused versions on the staging volume.")
    parser.add_argument("--staging", type=Path, required=True, help="folder with the versions")
    parser.add_argument("--keep", type=int, required=True, help="minimum number of versions to keep of each dataset")
    parser.add_argument("--current", default="", help="digest of the version of this run, which is kept")
    parser.add_argument(
        "--in-use", action="append", default=[], help="path on the volume that may be in use (repeatable)"
    )
    arguments = parser.parse_args()
    plan = prune_versions(
        arguments.staging,
        keep=arguments.keep,
        current=arguments.current,
        in_use=arguments.in_use,
        now=datetime.now(UTC),
    )
    print(plan, flush=True)
    report_result(
        {"status": "completed", "deleted": len(plan.delete), "versions": len(plan.decisions) - len(plan.delete)}
    )


if __name__ == "__main__":
    run(main)
