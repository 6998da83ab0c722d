"""The troubles of a job on a cluster, according to its pods, their containers and events. Pure functions of manifests.

Few accounts may read events; without them, some troubles are not recognized.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.manifests.train_job import names_of_jobs
from kubetrain_components.jobs.kubernetes.pod_end import (
    has_ended,
    is_cut_off,
    last_seen,
    lingering_containers,
    seconds,
    status_of,
)
from kubetrain_components.jobs.kubernetes.queue_troubles import queue_troubles
from kubetrain_components.jobs.refusals import kind_of_refusal
from kubetrain_components.jobs.troubles import JOB, Trouble, TroubleKind
from kubetrain_components.manifest import Manifest

WAITING = {
    "ErrImagePull": TroubleKind.IMAGE_PULL,
    "ImagePullBackOff": TroubleKind.IMAGE_PULL,
    "ErrImageNeverPull": TroubleKind.IMAGE_PULL,
    "RegistryUnavailable": TroubleKind.IMAGE_PULL,
    "InvalidImageName": TroubleKind.BAD_IMAGE_NAME,
    "CreateContainerConfigError": TroubleKind.CONFIGURATION,
    "CreateContainerError": TroubleKind.CONFIGURATION,
    "RunContainerError": TroubleKind.CONFIGURATION,
    "CrashLoopBackOff": TroubleKind.CRASH_LOOP,
}
"""The kind of trouble for each reason of a waiting container."""
NOT_CREATED_MESSAGE = re.compile(r"(?:Error creating|(?:launcher|worker) pod created failed): (.*)", re.DOTALL)
"""The second is of MPIJobs."""
NOT_MOUNTED = ("FailedMount", "FailedAttachVolume")
IN_USE = re.compile(r"Multi-Attach error .* already used by pod\(s\) (?P<pods>.+)")
POD_OF_A_JOB = re.compile(
    r"(?P<job>.+-[0-9a-f]{8})(-a\d+)?-([a-z0-9]{5}|launcher|[a-z]+-\d+|((n|node|launcher)-0-)?\d+-[a-z0-9]{5})"
)
"""Name of a pod of any run, as JobIdentity begins it."""


def troubles(
    kind: JobKind,
    job: Manifest,
    pods: Mapping[str, Manifest],
    events: Iterable[Manifest],
    queues: Sequence[Manifest] | None = None,
) -> list[Trouble]:
    """Return the current troubles of a job.

    Args:
        pods: Newest pod of each replica, by the replica's name.
        queues: The LocalQueues of Kueue that have the name of the job's; None if they are unknown.
    """
    by_uid = defaultdict(list)
    latest_last = sorted(events, key=last_seen)
    for event in latest_last:
        by_uid[_concerned(event)].append(event)
    found = [*_deletion_troubles(job), *queue_troubles(kind, job, pods, latest_last, queues)]
    for name, pod in pods.items():
        found += [*pod_troubles(name, pod), *_volume_troubles(name, pod, by_uid[pod["metadata"]["uid"]])]
        if lingering := lingering_containers(kind.traits.container, pod):
            found.append(_trouble(TroubleKind.LINGERING, name, f"container {', '.join(lingering)}"))
    found += _creation_troubles(pods, [event for event in latest_last if _is_of_maker(job, event)])
    # Each attempt to create a pod has its own message: the last one counts.
    last = {(trouble.kind, trouble.subject): trouble for trouble in found}
    return list(last.values()) or _operator_trouble(kind, job, pods)


def pod_troubles(name: str, pod: Manifest) -> Iterator[Trouble]:
    """Yield the troubles that the pod itself shows, without events."""
    yield from _scheduling_troubles(name, pod)
    yield from _container_troubles(name, pod)
    if is_cut_off(pod):
        yield _trouble(TroubleKind.NODE, name, pod["spec"]["nodeName"])


def _deletion_troubles(job: Manifest) -> Iterator[Trouble]:
    finalizers = job["metadata"].get("finalizers")
    if finalizers and "deletionTimestamp" in job["metadata"]:
        yield _trouble(TroubleKind.DELETING, JOB, ", ".join(finalizers))


def _operator_trouble(kind: JobKind, job: Manifest, pods: Mapping[str, Manifest]) -> list[Trouble]:
    """Return a trouble if nothing shows that the operator has seen the job."""
    status = job.get("status") or {}
    if (
        pods
        or status.get("conditions")
        or status.keys() & {"jobsStatus", "jobDeploymentStatus"}
        or kind is JobKind.BATCH_JOB
    ):
        return []
    return [_trouble(TroubleKind.OPERATOR, JOB, f"this {kind.value} has no status")]


def _scheduling_troubles(name: str, pod: Manifest) -> Iterator[Trouble]:
    found = [item for item in status_of(pod).get("conditions") or [] if item["type"] == "PodScheduled"]
    is_looked_at = found or has_ended(pod) or pod.get("deleted") or "nodeName" in pod["spec"]
    if not is_looked_at and "schedulerName" in pod["spec"]:
        yield _trouble(TroubleKind.SCHEDULER, name, pod["spec"]["schedulerName"])
    for condition in found:
        if condition["status"] == "False":
            message = condition.get("message", "")
            if condition.get("reason") == "SchedulingGated":
                yield _trouble(TroubleKind.QUEUE, name, message)
            elif "persistentvolumeclaim" in message.lower():
                yield _trouble(TroubleKind.VOLUME, name, message)
            else:
                yield _trouble(TroubleKind.UNSCHEDULABLE, name, message)


def _container_troubles(name: str, pod: Manifest) -> Iterator[Trouble]:
    statuses = status_of(pod)
    for container in [*(statuses.get("initContainerStatuses") or []), *(statuses.get("containerStatuses") or [])]:
        waiting: Mapping[str, Any] = (container.get("state") or {}).get("waiting") or {}
        if (kind := WAITING.get(waiting.get("reason", ""))) is not None:
            image = f"{container['image']}: " if kind in (TroubleKind.IMAGE_PULL, TroubleKind.BAD_IMAGE_NAME) else ""
            yield _trouble(kind, name, f"{image}{waiting.get('message') or waiting['reason']}")


def _is_of_maker(job: Manifest, event: Manifest) -> bool:
    """Return True for events of the job, or of what makes the pods of a TrainJob."""
    concerned, name = event.get("involvedObject") or {}, job["metadata"]["name"]
    made_by = [("JobSet", name), *(("Job", item) for item in names_of_jobs(name))]
    is_of_maker = job["kind"] == JobKind.TRAIN_JOB and (concerned.get("kind"), concerned.get("name")) in made_by
    return concerned.get("uid") == job["metadata"]["uid"] or is_of_maker


def _creation_troubles(pods: Mapping[str, Manifest], events: Iterable[Manifest]) -> Iterator[Trouble]:
    """Ignore events of the job from before its newest pod: events stay for an hour."""
    newest = max((seconds(pod["metadata"]["creationTimestamp"]) for pod in pods.values()), default=0.0)
    for event in events:
        error = NOT_CREATED_MESSAGE.fullmatch(event.get("message") or "")
        if error and last_seen(event) >= newest and (kind := kind_of_refusal(error[1])):
            yield _trouble(kind, JOB, error[1])


def _volume_troubles(name: str, pod: Manifest, events: Iterable[Manifest]) -> Iterator[Trouble]:
    if status_of(pod).get("phase") == "Pending":
        for event in events:
            if event.get("reason") in NOT_MOUNTED:
                message = event.get("message") or ""
                is_in_use = _is_used_by_other_jobs(pod["metadata"]["name"], message)
                yield _trouble(TroubleKind.VOLUME_IN_USE if is_in_use else TroubleKind.VOLUME, name, message)


def _is_used_by_other_jobs(pod: str, message: str) -> bool:
    """Return True if only pods of other jobs of ours use the volume: they end. Pods of the same job may be lost."""
    if (in_use := IN_USE.search(message)) is None:
        return False
    users = [POD_OF_A_JOB.fullmatch(user) for user in in_use["pods"].split(", ")]
    return all(user is not None and not pod.startswith(f"{user['job']}-") for user in users)


def _concerned(event: Manifest) -> str:
    return str((event.get("involvedObject") or {}).get("uid", ""))


def _trouble(kind: TroubleKind, subject: str, message: str) -> Trouble:
    return Trouble(kind=kind, subject=subject, evidence=message.strip().rstrip("."))
