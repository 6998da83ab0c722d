"""Deletes jobs whose run ended without them.

python -m kubetrain_components.jobs.kubernetes.reaper [--delete] [--hours 24]

A launcher deletes its job when its run is terminated, and the job's owner reference ends it with the Workflow. This is
for what slips through both: a job that trains on for a run that nobody retries. A job without a Workflow is left alone.
"""

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kubetrain_components.jobs.job import MANAGED_BY
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import UnknownKind
from kubetrain_components.jobs.kubernetes.state import job_state
from kubetrain_components.manifest import Manifest

WORKFLOWS = ("argoproj.io/v1alpha1", "workflows")
OVER_PHASES = ("Succeeded", "Failed", "Error")


@dataclass(frozen=True)
class Fate:
    kind: JobKind
    job: Manifest
    is_deleted: bool
    reason: str

    def __str__(self) -> str:
        metadata = self.job["metadata"]
        return f"{'delete' if self.is_deleted else 'keep'} {self.kind.value} {metadata['name']}: {self.reason}"


def fate_of(kind: JobKind, job: Manifest, run: Manifest | None, patience: timedelta, now: datetime) -> Fate:
    """What is to become of a job whose run is this. What is not known is not deleted."""
    return Fate(kind, job, *_verdict(kind, job, run, patience, now))


def _verdict(
    kind: JobKind, job: Manifest, run: Manifest | None, patience: timedelta, now: datetime
) -> tuple[bool, str]:
    if (owner := _owner(job)) is None:
        return False, "belongs to no run"
    if job_state(kind, job, []).phase.is_final:
        return False, "is over itself"
    if run is None or run["metadata"]["uid"] != owner["uid"]:
        return False, f"its run {owner['name']} is gone, and the cluster deletes it after it"
    status = run.get("status") or {}
    if status.get("phase") not in OVER_PHASES or not status.get("finishedAt"):
        return False, f"its run {owner['name']} goes on"
    age = now - datetime.fromisoformat(status["finishedAt"])
    if age < patience:
        return False, f"its run {owner['name']} ended {_hours(age)} ago, and may be retried"
    return True, f"its run {owner['name']} ended {_hours(age)} ago: {status['phase']}"


def _owner(job: Manifest) -> Manifest | None:
    owners = job["metadata"].get("ownerReferences") or []
    return next((each for each in owners if each["kind"] == "Workflow"), None)


def _hours(age: timedelta) -> str:
    return f"{age / timedelta(hours=1):.1f} h"


def _jobs(api: KubernetesApi) -> Iterator[tuple[JobKind, Manifest]]:
    ours = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())
    for kind in JobKind:
        with contextlib.suppress(UnknownKind):  # a cluster without that operator has no such job
            listed = api.get(api.path(*kind.traits.resource), labelSelector=ours) or {}
            yield from ((kind, job) for job in listed.get("items") or [])


def _run_of(job: Manifest, api: KubernetesApi) -> Manifest | None:
    """By its name: a list of all runs is more than fits into a small pod's memory."""
    owner = _owner(job)
    with contextlib.suppress(UnknownKind):
        return api.get(api.path(*WORKFLOWS, owner["name"])) if owner else None
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delete", action="store_true", help="delete, rather than only say what would be")
    parser.add_argument("--hours", type=float, default=24.0, help="after the end of a run, in which it may be retried")
    arguments = parser.parse_args()
    api = KubernetesApi.connect()
    patience, now = timedelta(hours=arguments.hours), datetime.now(UTC)
    for kind, job in _jobs(api):
        fate = fate_of(kind, job, _run_of(job, api), patience, now)
        print(fate if arguments.delete else f"would {fate}", flush=True)
        if arguments.delete and fate.is_deleted:
            path = api.path(*fate.kind.traits.resource, fate.job["metadata"]["name"])
            api.delete(path, uid=fate.job["metadata"]["uid"])


if __name__ == "__main__":
    main()
