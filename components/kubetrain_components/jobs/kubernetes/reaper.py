"""Delete jobs that are still active although their run has ended, and what outlives a job.

python -m kubetrain_components.jobs.kubernetes.reaper [--delete] [--hours 24]

A launcher deletes its job when its run is terminated, and the cluster deletes it together with its Workflow. The reaper
finds jobs that escape both: their run has ended, or their launcher left them, and no retry follows them. It keeps
active jobs that never had a Workflow. It also deletes finished jobs after ttl_seconds if nothing else in the cluster
does, the running pods and the etcd of jobs that ended while no launcher looked, and what a killed launcher created for
a job that it never created: Services, TrainingRuntimes and etcd.
"""

import argparse
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from kubetrain_components.jobs.annotations import LEFT_ANNOTATION, TTL_ANNOTATION, VERDICT_ANNOTATION
from kubetrain_components.jobs.conditions import conditions_of
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import JobState, Phase
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.argo_run import WORKFLOWS
from kubetrain_components.jobs.kubernetes.errors import KubernetesError, UnknownKind
from kubetrain_components.jobs.kubernetes.leaked import OURS, leaked_companions, unneeded_etcds
from kubetrain_components.jobs.kubernetes.manifests.etcd import ETCD_OF_LABEL
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import companion_resource
from kubetrain_components.jobs.kubernetes.pod_end import has_ended
from kubetrain_components.jobs.kubernetes.served import list_if_served
from kubetrain_components.jobs.kubernetes.state import is_of, job_state
from kubetrain_components.manifest import Manifest

FINAL_PHASES = ("Succeeded", "Failed", "Error")
CLEANING_DELAY = timedelta(hours=1)
"""Time for a launcher to judge a job that has ended by its pods."""


class Action(StrEnum):
    KEEP = "keep"
    DELETE = "delete"
    CLEAN = "clean"


@dataclass(frozen=True)
class Found:
    """A job with its run (None if it was not found) and those of its pods that run."""

    kind: JobKind
    job: Manifest
    run: Manifest | None = None
    pods: Sequence[Manifest] = ()

    @property
    def state(self) -> JobState:
        return job_state(self.kind, self.job, self.pods)

    def __str__(self) -> str:
        return f"{self.kind.value} {self.job['metadata']['name']}"


def decide(found: Found, retry_window: timedelta, now: datetime) -> tuple[Action, str]:
    """Decide what to do with a job, and return the reason. If in doubt, keep it."""
    state = found.state
    if state.phase.is_final:
        return _by_time_to_live(found, state, now) or _decide_on_pods(found, state, now)
    if left_at := state.annotations.get(LEFT_ANNOTATION):
        return _by_time_left(left_at, retry_window, now)
    if (owner := _owner(found.job)) is None:
        return Action.KEEP, "has no run"
    if found.run is None or found.run["metadata"]["uid"] != owner["uid"]:
        return Action.KEEP, f"its run {owner['name']} is gone, so the cluster will delete the job"
    status = found.run.get("status") or {}
    if status.get("phase") not in FINAL_PHASES or not status.get("finishedAt"):
        return Action.KEEP, f"its run {owner['name']} is still active"
    age = now - datetime.fromisoformat(status["finishedAt"])
    return _by_age(age, retry_window, f"its run {owner['name']} ended {_hours(age)} ago: {status['phase']}")


def _by_time_left(left_at: str, retry_window: timedelta, now: datetime) -> tuple[Action, str]:
    try:
        age = now - datetime.fromisoformat(left_at)
    except (ValueError, TypeError):  # no time, or one without a time zone
        return Action.KEEP, f"{LEFT_ANNOTATION}={left_at} is not a time with a time zone: correct it, or delete the job"
    return _by_age(age, retry_window, f"its launcher left it {_hours(age)} ago")


def _by_age(age: timedelta, retry_window: timedelta, what: str) -> tuple[Action, str]:
    return (Action.DELETE, what) if age >= retry_window else (Action.KEEP, f"{what}; it may be retried")


def _by_time_to_live(found: Found, state: JobState, now: datetime) -> tuple[Action, str] | None:
    seconds, ended_at = state.annotations.get(TTL_ANNOTATION, ""), _ended_at(found.job)
    if ended_at is None or not seconds.isdecimal() or (now - ended_at).total_seconds() < int(seconds):
        return None
    return Action.DELETE, f"has ended {_hours(now - ended_at)} ago and was kept for pods.ttl_seconds={seconds}"


def _decide_on_pods(found: Found, state: JobState, now: datetime) -> tuple[Action, str]:
    """Clean the pods that no launcher will: it may have been killed before, or after its verdict."""
    ended_at, is_judged = _ended_at(found.job), VERDICT_ANNOTATION in state.annotations
    if not found.pods or ended_at is None:
        return Action.KEEP, "has ended"
    if not is_judged and state.phase is Phase.SUCCEEDED and state.has_succeeded_early:
        return Action.KEEP, "reports success, but pods still work that its launcher waits for"
    age = now - ended_at
    pods = f"has ended {_hours(age)} ago, but {len(found.pods)} of its pods still run"
    return (Action.CLEAN if age >= CLEANING_DELAY else Action.KEEP), pods


def _ended_at(job: Manifest) -> datetime | None:
    ends = [condition for condition in conditions_of(job) if condition["type"] in ("Failed", "Succeeded", "Complete")]
    times = [end["lastTransitionTime"] for end in ends if end["status"] == "True" and "lastTransitionTime" in end]
    return max(map(datetime.fromisoformat, times), default=None)


def _owner(job: Manifest) -> Manifest | None:
    owners = job["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner["kind"] == "Workflow"), None)


def _hours(age: timedelta) -> str:
    return f"{age / timedelta(hours=1):.1f} h"


def _jobs(api: KubernetesApi, kind: JobKind) -> list[Manifest]:
    found = list_if_served(api, kind.traits.resource, labelSelector=OURS)
    # An etcd is judged by its training, not by its own state.
    return [job for job in found if ETCD_OF_LABEL not in job["metadata"]["labels"]]


def _run_of(job: Manifest, api: KubernetesApi) -> Manifest | None:
    """Get the one run: a list of all runs may not fit into a small pod's memory."""
    owner = _owner(job)
    with contextlib.suppress(UnknownKind):
        return api.get(api.path(*WORKFLOWS, owner["name"])) if owner else None
    return None


def _running_pods(found: Found, api: KubernetesApi) -> list[Manifest]:
    """Return the running pods of a job that has ended."""
    state = found.state
    if not state.phase.is_final:
        return []
    of_job = f"{found.kind.traits.job_name_label}={state.handle.name}"
    listed = api.get(api.path("v1", "pods"), labelSelector=of_job) or {}
    return [pod for pod in listed.get("items") or [] if is_of(pod, found.job) and not has_ended(pod)]


@dataclass(frozen=True)
class Reaper:
    api: KubernetesApi
    retry_window: timedelta
    now: datetime
    deletes: bool

    def reap(self, kind: JobKind) -> None:
        jobs = _jobs(self.api, kind)
        for job in jobs:
            self._reap_job(Found(kind, job, _run_of(job, self.api), _running_pods(Found(kind, job), self.api)))
        for companion in leaked_companions(self.api, kind, jobs, self.now):
            name = f"{companion_resource(kind)[1].removesuffix('s')} {companion['metadata']['name']}"
            self._say(Action.DELETE, name, "no job has or needs it")
            self._delete(companion_resource(kind), [companion])
        ended = [job for job in jobs if (at := _ended_at(job)) is not None and self.now - at >= CLEANING_DELAY]
        for etcd in unneeded_etcds(self.api, kind, jobs, ended, self.now):
            self._say(Action.DELETE, f"etcd {etcd['metadata']['name']}", "no job has or needs it")
            self._delete(JobKind.BATCH_JOB.traits.resource, [etcd])

    def _reap_job(self, found: Found) -> None:
        action, reason = decide(found, self.retry_window, self.now)
        self._say(action, str(found), reason)
        if action is Action.DELETE:
            self._delete(found.kind.traits.resource, [found.job])
        if action is Action.CLEAN:
            self._delete(("v1", "pods"), found.pods)

    def _say(self, action: Action, what: str, reason: str) -> None:
        print(f"{'' if self.deletes else 'would '}{action} {what}: {reason}", flush=True)

    def _delete(self, resource: tuple[str, str], manifests: Sequence[Manifest]) -> None:
        for manifest in manifests if self.deletes else ():
            metadata = manifest["metadata"]
            try:
                self.api.delete(self.api.path(*resource, metadata["name"]), uid=metadata["uid"])
            except KubernetesError as error:  # which must not keep the others
                print(f"could not delete {metadata['name']} ({error}): the next run tries again", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delete", action="store_true", help="delete what it finds (default: only print decisions)")
    parser.add_argument("--hours", type=float, default=24.0, help="minimum hours since the run ended (default: 24)")
    arguments = parser.parse_args()
    reaper = Reaper(KubernetesApi.connect(), timedelta(hours=arguments.hours), datetime.now(UTC), arguments.delete)
    for kind in JobKind:
        reaper.reap(kind)


if __name__ == "__main__":
    main()
