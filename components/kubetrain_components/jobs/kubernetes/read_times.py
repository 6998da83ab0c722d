"""Read when the jobs and pods of a run began and ended: from the cluster, or for deleted pods, from earlier watches."""

import contextlib
from collections.abc import Iterable

from kubetrain_components.jobs.annotations import RUN_ID, STAGE
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_times import JobTimes
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.pod_times import job_times
from kubetrain_components.jobs.kubernetes.served import Resource, list_if_served
from kubetrain_components.jobs.kubernetes.watched import WatchedObject
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.errors import KubetrainError

PODS: Resource = ("v1", "pods")
READ_SECONDS = 10.0
"""Time for which these requests are retried: nothing but a summary depends on them."""


def read_times(api: KubernetesApi, job: Job, watched: Iterable[WatchedObject]) -> JobTimes:
    """Return the times of all attempts of the job's stage."""
    jobs: list[Manifest] = []
    pods = {each.uid: {**each.manifest, "deleted": each.is_gone} for each in watched}
    with contextlib.suppress(KubetrainError):
        jobs = [each for each in _list(api, job.kind.traits.resource, job) if _is_of(each, job)]
        present = {pod["metadata"]["uid"]: pod for pod in _list(api, PODS, job)}
        pods = {uid: {**pod, "deleted": True} for uid, pod in pods.items()} | present
    return job_times(job.kind.traits.container, jobs, [pod for pod in pods.values() if _is_of(pod, job)])


def _list(api: KubernetesApi, resource: Resource, job: Job) -> list[Manifest]:
    return list_if_served(api, resource, retry_seconds=READ_SECONDS, labelSelector=job.identity.selector)


def _is_of(found: Manifest, job: Job) -> bool:
    """Return True if it belongs to this stage of this run: labels have only a slug of the run's ID."""
    annotations, ours = found["metadata"].get("annotations") or {}, job.identity.annotations()
    return all(annotations.get(name) == ours[name] for name in (RUN_ID, STAGE))
