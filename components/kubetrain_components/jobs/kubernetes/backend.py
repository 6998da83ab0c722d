"""Jobs on a Kubernetes cluster: PyTorchJob and TFJob of the training operator, and batch Jobs."""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Self

from kubetrain_components.jobs.backend import JobExists
from kubetrain_components.jobs.job import LABEL_PREFIX, Job, JobHandle, JobState, LogLine
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.argo_run import ArgoRun
from kubetrain_components.jobs.kubernetes.errors import Conflict
from kubetrain_components.jobs.kubernetes.followed import FollowedJob
from kubetrain_components.jobs.kubernetes.manifests import job_manifest
from kubetrain_components.jobs.kubernetes.pod_logs import PodLogs
from kubetrain_components.jobs.kubernetes.state import job_state, replica_name

LOG_POSITION_ANNOTATION = LABEL_PREFIX + "log-position"
LOG_POSITION_SECONDS = 10.0
JOB_RETRY_SECONDS = 3600.0
"""Time for which requests about an existing job are retried: it runs without the API server and without us."""
LAST_REQUESTS_SECONDS = 5.0
"""Time for the last requests of an interrupted launcher, which is about to be killed."""


class KubernetesBackend:
    """A context manager that stops its watches on exit, but leaves jobs alone."""

    def __init__(self, api: KubernetesApi, job_retry_seconds: float = 0.0) -> None:
        """
        Args:
            job_retry_seconds: Time for which requests are retried once there is a job; 0: as before.
        """
        self._api, self._job_retry_seconds = api, job_retry_seconds
        self._run = ArgoRun.of_this_process(api)
        self._followed: dict[JobHandle, FollowedJob] = {}
        self._lock = threading.Lock()

    @classmethod
    def connect(cls, namespace: str = "") -> Self:
        return cls(KubernetesApi.connect(namespace), JOB_RETRY_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        for followed in self._followed.values():
            followed.stop()

    def find(self, job: Job) -> JobState | None:
        found = self._api.get(self._path(job.kind, job.identity.name))
        return job_state(job.kind, found, []) if found else None

    def create(self, job: Job) -> JobHandle:
        manifest = job_manifest(job, self._run.owner if self._run else None)
        try:
            created = self._api.create(self._path(job.kind), manifest)
        except Conflict as error:
            raise JobExists(str(error)) from error
        return JobHandle(kind=job.kind, name=job.identity.name, uid=created["metadata"]["uid"])

    def watch(self, handle: JobHandle) -> Iterator[JobState | None]:
        followed = self._follow(handle)
        while (state := followed.state()) is not None:
            yield state
            followed.await_change(state)
        yield None

    def logs(self, handle: JobHandle) -> Iterator[LogLine]:
        """Yield lines from the position that an earlier launcher reached."""
        followed = self._follow(handle)
        before = followed.state()
        since = before.annotations.get(LOG_POSITION_ANNOTATION, "") if before else ""
        logs = PodLogs(self._api, followed.pods, handle.kind.traits.container, replica_name, since)
        last_saved = time.monotonic()
        for line in logs.lines(followed.is_over):
            yield line
            if time.monotonic() - last_saved >= LOG_POSITION_SECONDS:
                last_saved = time.monotonic()
                self.annotate(handle, {LOG_POSITION_ANNOTATION: logs.position})

    def annotate(self, handle: JobHandle, values: Mapping[str, str]) -> None:
        # With the uid, the server rejects the patch if another job has this name now.
        metadata = {"uid": handle.uid, "annotations": dict(values)}
        with contextlib.suppress(Conflict):
            self._api.patch(self._path(handle.kind, handle.name), {"metadata": metadata})

    def clean(self, handle: JobHandle, pods: str) -> None:
        if pods == "None":
            return
        for pod in self._follow(handle).existing_pods(include_ended=pods == "All"):
            self._api.delete(self._api.path("v1", "pods", pod["metadata"]["name"]), uid=pod["metadata"]["uid"])

    def delete(self, handle: JobHandle) -> None:
        """Delete the job in one request; garbage collection deletes its pods."""
        self._api.retry_seconds = LAST_REQUESTS_SECONDS
        self._api.delete(self._path(handle.kind, handle.name), uid=handle.uid)

    def run_outlives_launcher(self) -> bool:
        self._api.retry_seconds = LAST_REQUESTS_SECONDS
        return self._run is not None and self._run.is_active()

    def _follow(self, handle: JobHandle) -> FollowedJob:
        with self._lock:  # another thread reads the logs
            if handle not in self._followed:
                self._api.retry_seconds = self._job_retry_seconds or self._api.retry_seconds
                self._followed[handle] = FollowedJob(self._api, self._path(handle.kind), handle)
            return self._followed[handle]

    def _path(self, kind: JobKind, name: str = "") -> str:
        return self._api.path(*kind.traits.resource, name)
