"""Read when the jobs and pods of a run began and ended: from the cluster, or for deleted pods, from earlier watches."""

import contextlib
from collections.abc import Iterable

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
        jobs = _list(api, job.kind.traits.resource, job)
        present = {pod["metadata"]["uid"]: pod for pod in _list(api, PODS, job)}
        pods = {uid: {**pod, "deleted": True} for uid, pod in pods.items()} | present
    return job_times(job.kind.traits.container, jobs, list(pods.values()))


def _list(api: KubernetesApi, resource: Resource, job: Job) -> list[Manifest]:
    return list_if_served(api, resource, retry_seconds=READ_SECONDS, labelSelector=job.identity.selector)
