"""One job in the cluster: the job itself, its pods, and warnings about them until all have started."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from kubetrain_components.changes import Changes
from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_components.jobs.annotations import (
    KUEUE_LABEL,
    LOG_POSITION_ANNOTATION,
    PROGRESS_ANNOTATION,
    SECONDS_RUNNING_ANNOTATION,
)
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import JobHandle, JobState
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.background import BackgroundThread
from kubetrain_components.jobs.kubernetes.manifests.etcd import ETCD_LABEL, etcd_name
from kubetrain_components.jobs.kubernetes.pod_end import has_ended
from kubetrain_components.jobs.kubernetes.state import is_of, job_state
from kubetrain_components.jobs.kubernetes.watched import Watched, WatchedObject
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.errors import KubetrainError

AGAIN_SECONDS = 60.0
"""Time after which values that could not be written are tried again."""

HEARTBEAT_SECONDS = 1.0
LOCAL_QUEUES = ("kueue.x-k8s.io/v1beta2", "localqueues")
NOTES = (LOG_POSITION_ANNOTATION, PROGRESS_ANNOTATION, SECONDS_RUNNING_ANNOTATION)
"""Annotations that the launcher writes every few seconds."""
VERSIONS = ("resourceVersion", "managedFields")
MAX_SHARE_OF_TIME = 0.1
"""Share of the time that may be spent on deriving states while hundreds of pods change one after the other."""
MAX_PAUSE_SECONDS = 0.5

Version = tuple[Watched, int]
"""A watch, and the number of its changes."""


class FollowedJob:
    def __init__(
        self, api: KubernetesApi, path: str, handle: JobHandle, annotate: Callable[[Mapping[str, str]], bool]
    ) -> None:
        self._api, self.handle, self._path = api, handle, f"{path}/{handle.name}"
        self._changed = Changes()
        self._job = Watched(api, path, self._changed, fieldSelector=f"metadata.name={handle.name}")
        self._of_job = f"{handle.kind.traits.job_name_label}={handle.name}"
        self.pods = Watched(api, api.path("v1", "pods"), self._changed, labelSelector=self._of_job)
        self.notes = Notes(annotate)
        self._events: list[Watched] = []
        self._queues: list[Watched] = []
        self._etcd: list[Watched] = []
        self._state: JobState | None = None
        self._state_versions: list[Version] = []
        self._job_of_state: list[Manifest] = []
        self._derive_again_at = 0.0
        self._is_stopped = False
        for thread in self._threads():
            thread.start()

    def state(self) -> JobState | None:
        """Return the current state; None if the job is gone or another one has its name.

        Many changes are taken together, because deriving it takes a while for a job with hundreds of pods.
        """
        self._await_lists()
        with self._changed.lock:
            began = time.monotonic()
            if self._is_outdated() and began >= self._derive_again_at:
                self._renew_state()
                ended = time.monotonic()
                self._derive_again_at = ended + min((ended - began) / MAX_SHARE_OF_TIME, MAX_PAUSE_SECONDS)
            return self._state

    def _renew_state(self) -> None:
        versions, jobs = self._versions(), self._job.objects()
        own = _without_notes(jobs)
        if self._state is not None and versions[1:] == self._state_versions[1:] and own == self._job_of_state:
            (notes,) = [job.manifest["metadata"].get("annotations") for job in jobs if job.uid == self.handle.uid]
            self._state = replace(self._state, annotations=notes or {})
        else:
            self._state = self._derive_state(jobs, self.pods.objects())
        self._state_versions, self._job_of_state = versions, own  # not before: a state that cannot be derived is none

    def listed_state(self) -> JobState | None:
        """Return the current state with the pods of a new list: their watch may be behind the job's."""
        try:
            return self._with_listed_pods(self._job.objects())
        except KubetrainError:
            return self.state()

    def read(self) -> JobState | None:
        """Return the state that new requests for the job and its pods find."""
        job = self._api.get(self._path)
        return self._with_listed_pods([WatchedObject(job)] if job else [])

    @property
    def is_cut_off(self) -> bool:
        """True if the state may be outdated, because the API server does not answer."""
        return self._job.is_cut_off or self.pods.is_cut_off

    def _with_listed_pods(self, jobs: Sequence[WatchedObject]) -> JobState | None:
        listed = self._api.get(self._api.path("v1", "pods"), labelSelector=self._of_job) or {"items": []}
        present = {pod["metadata"]["uid"]: WatchedObject(pod) for pod in listed["items"]}
        seen = {pod.uid: replace(pod, is_gone=True) for pod in self.pods.objects()}
        state = self._derive_state(jobs, [*{**seen, **present}.values()])
        return state and replace(state, is_after_gap=True)  # the requests may have been retried for long

    def _derive_state(self, jobs: Sequence[WatchedObject], pods_now: Sequence[WatchedObject]) -> JobState | None:
        found = [job for job in jobs if job.uid == self.handle.uid and not job.is_gone]
        if not found:
            return None
        pods = [item.manifest | ({"deleted": True} if item.is_gone else {}) for item in pods_now]
        events = [item.manifest for watched in self._events for item in watched.objects()]
        etcd = [item.manifest for watched in self._etcd for item in watched.objects()]
        return job_state(self.handle.kind, found[0].manifest, pods, events, self._known_queues(), etcd)

    def _known_queues(self) -> list[Manifest] | None:
        """Return the job's queue, as far as it may be read."""
        known = [watched for watched in self._queues if _is_current(watched)]
        return [item.manifest for watched in known for item in watched.objects()] if known else None

    def is_over(self) -> bool:
        if self._is_stopped:
            return True
        state = self.state()
        return state is None or state.is_over

    def await_change(self, state: JobState) -> None:
        """Wait until the state changes, for at most a second."""
        with self._changed.lock, interrupts_deferred():
            self._update_watches(state)
        self._changed.wait_for(lambda: self._is_outdated() or self.state() is not state, HEARTBEAT_SECONDS)
        if self._is_outdated() and (pause := self._derive_again_at - time.monotonic()) > 0:
            self._changed.wait_for(lambda: self._is_stopped, pause)

    def unended_pods(self) -> list[Manifest]:
        self._await_lists()
        jobs = [item.manifest for item in self._job.objects() if item.uid == self.handle.uid]
        pods = [item.manifest for item in self.pods.objects() if not item.is_gone and not has_ended(item.manifest)]
        return [pod for pod in pods if any(is_of(pod, job) for job in jobs)]

    def stop(self) -> None:
        self._is_stopped = True
        with interrupts_deferred():
            for thread in self._threads():
                thread.stop()
        self._changed.notify()

    def join(self, seconds: float) -> None:
        """Wait for the threads to end after stop(), at most this long."""
        deadline = time.monotonic() + seconds
        for thread in self._threads():
            thread.join(max(deadline - time.monotonic(), 0))

    def _is_outdated(self) -> bool:
        return self._versions() != self._state_versions

    def _versions(self) -> list[Version]:
        known = [(watched, watched.changes) for watched in (self._job, self.pods, *self._events, *self._etcd)]
        return [*known, *((queue, queue.changes if _is_current(queue) else -1) for queue in self._queues)]

    def _threads(self) -> list[BackgroundThread]:
        return [self.notes, self._job, self.pods, *self._events, *self._queues, *self._etcd]

    def _await_lists(self) -> None:
        for watched in (self._job, self.pods):
            while not self._changed.wait_for(partial(_has_listed, watched), HEARTBEAT_SECONDS):
                pass
            if watched.error is not None:
                raise watched.error

    def _update_watches(self, state: JobState) -> None:
        """Watch events and the queue only until the job is under way: the events are those of the whole namespace."""
        self._etcd = self._etcd or self._watch_etcd(state)
        if state.is_under_way:
            for watched in (*self._events, *self._queues):
                watched.stop()
            self._events, self._queues = [], []
        elif not state.phase.is_final:
            self._events = self._events or self._watch_events()
            self._queues = self._queues or self._watch_queue(state)

    def _watch_events(self) -> list[Watched]:
        path, of_podgroup = self._api.path("v1", "events"), "involvedObject.kind=PodGroup,involvedObject.name="
        # Volcano's events are not warnings.
        return [self._watch(path, fieldSelector=item) for item in ("type=Warning", of_podgroup + self.handle.name)]

    def _watch_queue(self, state: JobState) -> list[Watched]:
        queue = state.labels.get(KUEUE_LABEL)
        path, of_name = self._api.path(*LOCAL_QUEUES), f"metadata.name={queue}"
        return [self._watch(path, fieldSelector=of_name)] if queue else []

    def _watch_etcd(self, state: JobState) -> list[Watched]:
        """Watch the pod of the job's own etcd all the time: the others start, but wait for it."""
        if not (instance := state.labels.get(ETCD_LABEL)):
            return []
        of_etcd = f"{JobKind.BATCH_JOB.traits.job_name_label}={etcd_name(self.handle.name, instance)}"
        return [self._watch(self._api.path("v1", "pods"), labelSelector=of_etcd)]

    def _watch(self, path: str, **selector: str) -> Watched:
        watched = Watched(self._api, path, self._changed, keeps_deleted=False, **selector)
        watched.start()
        return watched


def _without_notes(jobs: Sequence[WatchedObject]) -> list[Manifest]:
    """Return what the state of a job depends on, without the notes of its launcher, which it only copies."""
    return [{**job.manifest, "metadata": _parts(job.manifest["metadata"]), "is_gone": job.is_gone} for job in jobs]


def _parts(metadata: Manifest) -> Manifest:
    others = {name: value for name, value in (metadata.get("annotations") or {}).items() if name not in NOTES}
    return {name: value for name, value in metadata.items() if name not in VERSIONS} | {"annotations": others}


def _is_current(watched: Watched) -> bool:
    return watched.has_synced and watched.error is None and not watched.is_cut_off


def _has_listed(watched: Watched) -> bool:
    return watched.has_synced or not watched.is_alive()


class Notes(BackgroundThread):
    """A thread that writes the newest value of each annotation until it is stopped.

    The API server, or a webhook, may take long to accept each. Neither the job's states nor its log wait for that.
    """

    def __init__(self, write: Callable[[Mapping[str, str]], bool]) -> None:
        super().__init__("notes", Changes())
        self._write = write
        self._pending: dict[str, str] = {}

    def put(self, values: Mapping[str, str]) -> None:
        with self.changed.lock:
            self._pending.update(values)
            self.changed.notify()

    def stop(self) -> None:
        super().stop()
        self.changed.notify()

    def _do_work(self) -> None:
        while values := self._take():
            if not self._write(values):
                self._put_back(values)
                self.must_stop.wait(AGAIN_SECONDS)

    def _take(self) -> dict[str, str]:
        """Wait for values; return none once the thread must stop."""
        with self.changed.lock:
            self.changed.wait_for(lambda: bool(self._pending) or self.must_stop.is_set())
            values, self._pending = self._pending, {}
            return {} if self.must_stop.is_set() else values

    def _put_back(self, values: Mapping[str, str]) -> None:
        with self.changed.lock:
            self._pending = {**values, **self._pending}
