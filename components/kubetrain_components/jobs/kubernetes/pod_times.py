"""The times of a run's jobs and pods: from the cluster, or for deleted pods, from earlier watches."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_state import JobTimes, PodTimes
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.pod_end import (
    container_status,
    finished_at,
    restart_count,
    seconds,
    status_of,
    was_disrupted,
)
from kubetrain_components.jobs.kubernetes.served import Resource, list_if_served
from kubetrain_components.jobs.kubernetes.state import is_of, was_suspended
from kubetrain_components.jobs.kubernetes.watched import WatchedObject
from kubetrain_components.jobs.placement import is_gpu
from kubetrain_components.jobs.quantity import amount
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.errors import KubetrainError

PODS: Resource = ("v1", "pods")
READ_SECONDS = 10.0
"""Time for which these requests are retried: nothing but a summary depends on them."""

SCHEDULED = ("PodScheduled", "True")
"""Type and status of the condition of a pod that has a node."""


def job_times(container: str, jobs: Sequence[Manifest], pods: Iterable[Manifest]) -> JobTimes:
    """Return the times of a run's jobs and pods. Deleted pods have "deleted": True in their manifest."""
    created = (seconds(job["metadata"].get("creationTimestamp")) for job in jobs)
    times = (pod_times(container, pod, was_evicted=_was_evicted(pod, jobs)) for pod in pods)
    return JobTimes(created=min(filter(None, created), default=0.0), pods=tuple(times))


def pod_times(container: str, pod: Manifest, *, was_evicted: bool = False) -> PodTimes:
    """
    Args:
        was_evicted: True if a queue evicted the pod, which its own status does not show.
    """
    first, later = _starts(container, pod)
    created, scheduled = seconds(pod["metadata"]["creationTimestamp"]), _scheduled(pod) or first
    ended = finished_at(pod, _state(container, pod, "state").get("terminated") or {})
    if pod.get("deleted"):  # without an end, it ended at the last time that is known of it
        ended = ended or max(created, scheduled, first, *later)
    return PodTimes(
        created=created,
        scheduled=scheduled,
        started=first,
        restarted=later,
        ended=ended,
        was_disrupted=was_disrupted(pod) or was_evicted,
        gpus=_requested(pod, is_gpu),
        cpus=_requested(pod, lambda resource: resource == "cpu"),
    )


def _was_evicted(pod: Manifest, jobs: Iterable[Manifest]) -> bool:
    return any(is_of(pod, job) and was_suspended(job, pod) for job in jobs)


def _scheduled(pod: Manifest) -> float:
    conditions = status_of(pod).get("conditions") or []
    times = [
        condition["lastTransitionTime"]
        for condition in conditions
        if (condition["type"], condition["status"]) == SCHEDULED
    ]
    return seconds(next(iter(times), None) or status_of(pod).get("startTime"))


def _starts(container: str, pod: Manifest) -> tuple[float, tuple[float, ...]]:
    """Return the first start of the container, 0 if it is unknown, and the later ones that Kubernetes still knows."""
    known = [seconds(start) for name in ("lastState", "state") for start in _started(_state(container, pod, name))]
    if restart_count(container, pod) >= len(known):
        return 0.0, tuple(known)
    return known[0], tuple(known[1:])


def _state(container: str, pod: Manifest, name: str) -> Manifest:
    return dict(container_status(container, pod).get(name) or {})


def _started(state: Manifest) -> Iterator[str]:
    return (item["startedAt"] for item in state.values() if item and item.get("startedAt"))


def _requested(pod: Manifest, is_wanted: Callable[[str], bool]) -> float:
    """Return the amount of the wanted resources that the pod's containers request together."""
    resources = (container.get("resources") or {} for container in pod["spec"]["containers"])
    requests = ({**(resource.get("limits") or {}), **(resource.get("requests") or {})} for resource in resources)
    return float(sum(amount(str(size)) for request in requests for name, size in request.items() if is_wanted(name)))


def read_times(api: KubernetesApi, job: Job, watched: Iterable[WatchedObject]) -> JobTimes:
    """Return the times of all attempts of the job's stage."""
    jobs: list[Manifest] = []
    pods = {item.uid: {**item.manifest, "deleted": item.is_gone} for item in watched}
    with contextlib.suppress(KubetrainError):
        jobs = _list(api, job.kind.traits.resource, job)
        present = {pod["metadata"]["uid"]: pod for pod in _list(api, PODS, job)}
        pods = {uid: {**pod, "deleted": True} for uid, pod in pods.items()} | present
    return job_times(job.kind.traits.container, jobs, list(pods.values()))


def _list(api: KubernetesApi, resource: Resource, job: Job) -> list[Manifest]:
    return list_if_served(api, resource, retry_seconds=READ_SECONDS, labelSelector=job.identity.selector)
