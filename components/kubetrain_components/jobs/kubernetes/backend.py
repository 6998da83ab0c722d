"""Jobs on a Kubernetes cluster: PyTorchJob, TFJob, TrainJob and batch Job."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Self

from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_components.jobs.annotations import (
    FAILED,
    FAILURE_ANNOTATION,
    LEFT_ANNOTATION,
    LOG_POSITION_ANNOTATION,
    VERDICT_ANNOTATION,
)
from kubetrain_components.jobs.backend import JobExists
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import TRAINING_KINDS, JobKind
from kubetrain_components.jobs.job_state import JobHandle, JobState, JobTimes, LogLine, Phase
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.argo_run import ArgoRun
from kubetrain_components.jobs.kubernetes.background import for_each
from kubetrain_components.jobs.kubernetes.companions import companions, create_beside, delete_etcd, own_companions
from kubetrain_components.jobs.kubernetes.container_log import read_last_lines
from kubetrain_components.jobs.kubernetes.errors import Conflict, StreamCut
from kubetrain_components.jobs.kubernetes.followed import FollowedJob
from kubetrain_components.jobs.kubernetes.manifests.indexed_job import NEEDED_ANNOTATION
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import job_manifest
from kubetrain_components.jobs.kubernetes.pod_end import has_ended
from kubetrain_components.jobs.kubernetes.pod_logs import PodLogs
from kubetrain_components.jobs.kubernetes.pod_times import read_times
from kubetrain_components.jobs.kubernetes.served import find_launcher
from kubetrain_components.jobs.kubernetes.state import job_state, replica_name
from kubetrain_components.jobs.kubernetes.watched import WatchedObject
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.errors import KubetrainError

LOG_POSITION_SECONDS = 10.0
JOB_RETRY_SECONDS = 3600.0
"""Time for which requests about an existing job are retried: it runs without the API server and without us."""
ANNOTATE_SECONDS = 5.0
CLEAN_SECONDS = 300.0
LEAVE_SECONDS = 20.0
"""Time to release a job from its run: within the 30 s in which an evicted pod must end."""
FAIL_SECONDS = 10.0
"""Time in which the cluster must fail a job whose limits were lowered; it takes less than one."""
LOWEST_LIMIT: Manifest = {"activeDeadlineSeconds": 1}
OPERATOR_LIMITS: Manifest = {"runPolicy": {"backoffLimit": 0, **LOWEST_LIMIT, "cleanPodPolicy": "Running"}}
JOIN_SECONDS = 2.0
LAST_REQUESTS_SECONDS = 5.0
"""Time for each of the last requests of an interrupted launcher, which is about to be killed."""

log = logging.getLogger(__name__)


class KubernetesBackend:
    """A context manager that stops its watches on exit, but leaves jobs alone."""

    def __init__(self, api: KubernetesApi, job_retry_seconds: float = 0.0) -> None:
        """
        Args:
            job_retry_seconds: Time for which requests are retried once there is a job; 0: as before.
        """
        self._api, self._job_retry_seconds = api, job_retry_seconds
        self._run = ArgoRun.of_this_process(api)
        self._followed: FollowedJob | None = None
        self._earlier_pods: list[WatchedObject] = []
        """Pods of jobs that were followed before this one."""
        self._lock = threading.Lock()
        self._has_exited = False
        self._has_warned = False
        self._adoption: Manifest = {}
        """Metadata that an adopted job still lacks."""

    @classmethod
    def connect(cls, namespace: str = "") -> Self:
        return cls(KubernetesApi.connect(namespace), JOB_RETRY_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self._has_exited = True
        with self._lock:
            followed = self._followed
        if followed is not None:
            followed.stop()
            followed.join(JOIN_SECONDS)

    def launcher(self, wanted: Launcher, framework: str, identity: JobIdentity) -> tuple[Launcher, str]:
        return find_launcher(self._api, wanted, framework, identity)

    def find(self, job: Job) -> JobState | None:
        found = self._api.get(self._path(job.kind, job.identity.name))
        return job_state(job.kind, found, []) if found else None

    def attempts(self, job: Job) -> list[str]:
        found = self._api.get(self._path(job.kind), labelSelector=job.identity.selector) or {}
        return [item["metadata"]["name"] for item in found.get("items") or []]

    def unended_pods(self, job: Job) -> list[str]:
        found = self._api.list_all(self._api.path("v1", "pods"), labelSelector=job.identity.selector) or {"items": []}
        return [pod["metadata"]["name"] for pod in found["items"] if not has_ended(pod)]

    def create(self, job: Job) -> JobHandle:
        owner = self._run.owner if self._run else None
        try:
            with companions(self._api, job, owner) as instance:
                created = create_beside(self._api, self._path(job.kind), job_manifest(job, owner, instance))
        except Conflict as error:
            raise JobExists(str(error)) from error
        return JobHandle(kind=job.kind, name=job.identity.name, uid=created["metadata"]["uid"])

    def watch(self, handle: JobHandle) -> Iterator[JobState | None]:
        followed, was_final, is_first = self._follow(handle), False, True
        while (state := followed.state()) is not None:
            # The proof of a success and the cause of a failure are on the pods, which the job's watch may be ahead of.
            is_new_end = state.phase.is_final and not was_final
            is_after_gap = is_first or followed.is_cut_off
            is_as_derived = is_after_gap == state.is_after_gap
            now = state if is_as_derived else replace(state, is_after_gap=is_after_gap)
            yield followed.listed_state() if is_new_end else now
            was_final, is_first = state.phase.is_final, False
            followed.await_change(state)
        yield None

    def read(self, handle: JobHandle) -> JobState | None:
        return self._follow(handle).read()

    def logs(self, handle: JobHandle, only: str = "") -> Iterator[LogLine]:
        """Yield lines from the position that an earlier launcher reached."""
        followed = self._follow(handle)
        if only:
            yield LogLine(only, f"following only {only}, and other pods once they fail")
        state = followed.state()
        since = state.annotations.get(LOG_POSITION_ANNOTATION, "") if state else ""
        logs = PodLogs(self._api, followed.pods, handle.kind.traits.container, replica_name, since, only)
        save_at, saved = time.monotonic() + LOG_POSITION_SECONDS, since
        for line in logs.lines(followed.is_over):
            yield line
            if time.monotonic() >= save_at:
                if (position := logs.position) != saved:
                    followed.notes.put({LOG_POSITION_ANNOTATION: position})
                    saved = position
                save_at = time.monotonic() + LOG_POSITION_SECONDS

    def last_lines(self, handle: JobHandle, pod: str) -> list[str]:
        try:
            return read_last_lines(self._api, handle, pod)
        except KubetrainError as error:
            log.info("cannot read the last lines of %s (%s)", pod, error)
            return []

    def times(self, job: Job) -> JobTimes:
        followed = self._followed.pods.objects() if self._followed is not None else []
        return read_times(self._api, job, [*self._earlier_pods, *followed])

    def annotate(self, handle: JobHandle, values: Mapping[str, str]) -> bool:
        return self._patch(handle, {"annotations": dict(values)})

    def note(self, handle: JobHandle, values: Mapping[str, str]) -> None:
        self._follow(handle).notes.put(values)

    def _patch(self, handle: JobHandle, metadata: Manifest) -> bool:
        """Change the job's metadata, if that works within seconds: the webhook of an absent operator rejects it."""
        try:
            self._send_patch(handle, {"metadata": metadata}, ANNOTATE_SECONDS)
        except StreamCut:  # the thread that writes notes was stopped
            return False
        except Exception as error:  # noqa: BLE001 - a note on the job decides nothing about it
            level = logging.INFO if self._has_warned else logging.WARNING
            log.log(level, "cannot annotate job %s (%s); the job continues", handle.name, error)
            self._has_warned = True
            return False
        return True

    def _send_patch(self, handle: JobHandle, change: Manifest, retry_seconds: float) -> Manifest | None:
        """Return the changed job; None if it is gone."""
        metadata = change["metadata"]
        annotations = {**self._adoption.get("annotations", {}), **metadata.get("annotations", {})}
        # With the uid, the server rejects the patch if another job has this name now.
        metadata = {"uid": handle.uid, **self._adoption, **metadata, "annotations": annotations}
        with contextlib.suppress(Conflict):  # the job is gone
            job = self._api.patch(self._path(handle.kind, handle.name), {**change, "metadata": metadata}, retry_seconds)
            self._adoption = {}
            return job
        return None

    def clean(self, handle: JobHandle) -> None:
        self._delete_etcd(handle)
        try:
            for_each(self._follow(handle).unended_pods(), self._delete_pod)
        except KubetrainError as error:
            log.warning("cannot delete the pods of job %s (%s): delete them with kubectl", handle.name, error)

    def _delete_pod(self, pod: Manifest) -> None:
        path = self._api.path("v1", "pods", pod["metadata"]["name"])
        self._api.delete(path, uid=pod["metadata"]["uid"], retry_seconds=CLEAN_SECONDS)

    def _delete_etcd(self, handle: JobHandle) -> None:
        try:
            state = self._follow(handle).state()
            delete_etcd(self._api, handle, state.labels if state else {}, CLEAN_SECONDS)
        except KubetrainError as error:
            log.warning("cannot delete the etcd of job %s (%s): delete it with kubectl", handle.name, error)

    def delete(self, handle: JobHandle) -> None:
        """Delete the job in one request; garbage collection deletes its pods."""
        self._api.delete(self._path(handle.kind, handle.name), uid=handle.uid)

    def fail(self, handle: JobHandle, reason: str) -> None:
        if not self._could_fail(handle, reason):
            self.delete(handle)
        self._delete_etcd(handle)

    def _could_fail(self, handle: JobHandle, reason: str) -> bool:
        """Let the cluster fail the job, which deletes its pods; return False if it does not, for example because the
        operator is away, or the job is suspended."""
        if not self._is_training(handle):
            return False
        metadata = {"annotations": {VERDICT_ANNOTATION: FAILED, FAILURE_ANNOTATION: reason}}
        try:
            limits = OPERATOR_LIMITS if handle.kind in TRAINING_KINDS else LOWEST_LIMIT
            self._send_patch(handle, {"metadata": metadata, "spec": limits}, ANNOTATE_SECONDS)
        except KubetrainError as error:
            log.info("cannot fail job %s (%s): deleting it", handle.name, error)
            return False
        deadline = time.monotonic() + FAIL_SECONDS
        states = self.watch(handle)
        while (state := next(states)) is not None and not state.phase.is_final and time.monotonic() < deadline:
            pass
        return state is not None and state.phase is Phase.FAILED

    def _is_training(self, handle: JobHandle) -> bool:
        state = self._follow(handle).state()
        return bool(handle.kind.traits.framework) or (state is not None and NEEDED_ANNOTATION in state.annotations)

    def run_outlives_launcher(self) -> bool:
        self._api.max_seconds = LAST_REQUESTS_SECONDS
        return self._run is not None and self._run.is_active()

    def leave(self, handle: JobHandle) -> None:
        """Release the job from its Workflow, whose deletion, an hour after the failure of the step, would end it."""
        if self._run is None:
            return
        if self._followed is not None:
            self._followed.notes.stop()  # a late one might adopt the job again
        left_at = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            release = {"ownerReferences": [], "annotations": {LEFT_ANNOTATION: left_at}}
            if (job := self._send_patch(handle, {"metadata": release}, LEAVE_SECONDS)) is not None:
                own_companions(self._api, handle, job["metadata"].get("labels") or {})  # if it does not own them yet
        except Exception as error:  # noqa: BLE001 - the launcher ends in any case
            log.warning(
                "cannot release job %s from its run (%s): the job still belongs to its run and ends with it about "
                "an hour later: retry the run before then",
                handle.name,
                error,
            )

    def adopt(self, job: JobState) -> None:
        with contextlib.suppress(KubetrainError):
            own_companions(self._api, job.handle, job.labels)
        if self._run is not None and LEFT_ANNOTATION in job.annotations:
            self._adoption = {"ownerReferences": [self._run.owner], "annotations": {LEFT_ANNOTATION: None}}
            self._patch(job.handle, {})

    def _follow(self, handle: JobHandle) -> FollowedJob:
        """Follow one job at a time: the threads of an earlier attempt end when the next one is followed."""
        with interrupts_deferred(), self._lock:  # another thread reads the logs
            if self._followed is None or self._followed.handle != handle:
                if self._followed is not None:
                    self._followed.stop()
                    self._earlier_pods += self._followed.pods.objects()
                self._api.retry_seconds = self._job_retry_seconds or self._api.retry_seconds
                self._followed = FollowedJob(self._api, self._path(handle.kind), handle, partial(self.annotate, handle))
                if self._has_exited:  # an interrupted launcher was faster than the thread that reads the logs
                    self._followed.stop()
            return self._followed

    def _path(self, kind: JobKind, name: str = "") -> str:
        return self._api.path(*kind.traits.resource, name)
