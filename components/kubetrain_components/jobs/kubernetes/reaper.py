"""Delete jobs that are still active although their run has ended.

python -m kubetrain_components.jobs.kubernetes.reaper [--delete] [--hours 24]

A launcher deletes its job when its run is terminated, and the cluster deletes it together with its Workflow. The reaper
finds jobs that escape both: their run has ended and is not retried. It keeps jobs without a Workflow.
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
FINAL_PHASES = ("Succeeded", "Failed", "Error")


@dataclass(frozen=True)
class Decision:
    kind: JobKind
    job: Manifest
    is_deleted: bool
    reason: str

    def __str__(self) -> str:
        metadata = self.job["metadata"]
        return f"{'delete' if self.is_deleted else 'keep'} {self.kind.value} {metadata['name']}: {self.reason}"


def decide(kind: JobKind, job: Manifest, run: Manifest | None, retry_window: timedelta, now: datetime) -> Decision:
    """Decide whether to delete a job, given its run (None if it was not found). If in doubt, keep it."""
    return Decision(kind, job, *_verdict(kind, job, run, retry_window, now))


def _verdict(
    kind: JobKind, job: Manifest, run: Manifest | None, retry_window: timedelta, now: datetime
) -> tuple[bool, str]:
    if (owner := _owner(job)) is None:
        return False, "has no run"
    if job_state(kind, job, []).phase.is_final:
        return False, "has ended"
    if run is None or run["metadata"]["uid"] != owner["uid"]:
        return False, f"its run {owner['name']} is gone, so the cluster will delete the job"
    status = run.get("status") or {}
    if status.get("phase") not in FINAL_PHASES or not status.get("finishedAt"):
        return False, f"its run {owner['name']} is still active"
    age = now - datetime.fromisoformat(status["finishedAt"])
    if age < retry_window:
        return False, f"its run {owner['name']} ended {_hours(age)} ago and may be retried"
    return True, f"its run {owner['name']} ended {_hours(age)} ago: {status['phase']}"


def _owner(job: Manifest) -> Manifest | None:
    owners = job["metadata"].get("ownerReferences") or []
    return next((each for each in owners if each["kind"] == "Workflow"), None)


def _hours(age: timedelta) -> str:
    return f"{age / timedelta(hours=1):.1f} h"


def _jobs(api: KubernetesApi) -> Iterator[tuple[JobKind, Manifest]]:
    ours = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())
    for kind in JobKind:
        with contextlib.suppress(UnknownKind):  # without its operator, a cluster does not know this kind
            listed = api.get(api.path(*kind.traits.resource), labelSelector=ours) or {}
            yield from ((kind, job) for job in listed.get("items") or [])


def _run_of(job: Manifest, api: KubernetesApi) -> Manifest | None:
    """Get the one run: a list of all runs may not fit into a small pod's memory."""
    owner = _owner(job)
    with contextlib.suppress(UnknownKind):
        return api.get(api.path(*WORKFLOWS, owner["name"])) if owner else None
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delete", action="store_true", help="delete jobs (default: only print decisions)")
    parser.add_argument("--hours", type=float, default=24.0, help="minimum hours since the run ended (default: 24)")
    arguments = parser.parse_args()
    api = KubernetesApi.connect()
    retry_window, now = timedelta(hours=arguments.hours), datetime.now(UTC)
    for kind, job in _jobs(api):
        decision = decide(kind, job, _run_of(job, api), retry_window, now)
        print(decision if arguments.delete else f"would {decision}", flush=True)
        if arguments.delete and decision.is_deleted:
            api.delete(api.path(*kind.traits.resource, job["metadata"]["name"]), uid=job["metadata"]["uid"])


if __name__ == "__main__":
    main()
