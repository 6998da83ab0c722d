"""One job as the cluster shows it: the job, its pods, and while it does not get going the warnings about them."""

import threading

from kubetrain_components.jobs.job import JobHandle, JobState
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.pod_end import has_ended
from kubetrain_components.jobs.kubernetes.state import is_of, job_state
from kubetrain_components.jobs.kubernetes.watched import Watched
from kubetrain_components.manifest import Manifest

HEARTBEAT_SECONDS = 1.0


class FollowedJob:
    def __init__(self, api: KubernetesApi, path: str, handle: JobHandle) -> None:
        self._api, self._handle = api, handle
        self._changed = threading.Condition()
        self._job = Watched(api, path, self._changed, fieldSelector=f"metadata.name={handle.name}")
        of_job = f"{handle.kind.traits.job_name_label}={handle.name}"
        self.pods = Watched(api, api.path("v1", "pods"), self._changed, labelSelector=of_job)
        self._events: list[Watched] = []
        self._state: JobState | None = None
        self._state_of: list[tuple[Watched, int]] = []
        for watched in (self._job, self.pods):
            watched.start()

    def state(self) -> JobState | None:
        """What is known now; None where the job is gone, or another has its name.

        Made once for each change, whoever asks: of a job of hundreds of pods it takes a while.
        """
        self._await_lists()
        with self._changed:
            seen = [(watched, watched.changes) for watched in self._watches()]
            if seen != self._state_of:
                self._state, self._state_of = self._made_state(), seen
            return self._state

    def _made_state(self) -> JobState | None:
        found = [each for each in self._job.objects() if each.uid == self._handle.uid and not each.is_gone]
        if not found:
            return None
        pods = [each.manifest | ({"deleted": True} if each.is_gone else {}) for each in self.pods.objects()]
        return job_state(self._handle.kind, found[0].manifest, pods, self._known_events())

    def is_over(self) -> bool:
        state = self.state()
        return state is None or state.is_over

    def await_change(self, state: JobState) -> None:
        """Return once it is another state, or after a second."""
        with self._changed:
            self._attend_to_events(state)
            self._changed.wait_for(lambda: self.state() is not state, HEARTBEAT_SECONDS)

    def living_pods(self, *, with_those_that_ended: bool) -> list[Manifest]:
        pods = [
            each.manifest for each in self.pods.objects() if not each.is_gone and is_of(each.manifest, self._handle)
        ]
        return [pod for pod in pods if with_those_that_ended or not has_ended(pod)]

    def stop(self) -> None:
        for watched in self._watches():
            watched.stop()

    def _watches(self) -> list[Watched]:
        return [self._job, self.pods, *self._events]

    def _await_lists(self) -> None:
        with self._changed:
            for watched in (self._job, self.pods):
                while not watched.has_synced and watched.error is None:
                    self._changed.wait(HEARTBEAT_SECONDS)
                if watched.error is not None:
                    raise watched.error

    def _known_events(self) -> list[Manifest]:
        """Few accounts may read events: without them the troubles that only they tell have no name."""
        return [each.manifest for watched in self._events for each in watched.objects()]

    def _attend_to_events(self, state: JobState) -> None:
        """Those of the whole namespace come in: they are watched no longer than needed."""
        if state.is_under_way:
            for watched in self._events:
                watched.stop()
            self._events = []
        elif not self._events and not state.phase.is_final:
            of_podgroup = f"involvedObject.kind=PodGroup,involvedObject.name={self._handle.name}"
            for selector in ("type=Warning", of_podgroup):  # Volcano does not warn
                path = self._api.path("v1", "events")
                self._events.append(Watched(self._api, path, self._changed, fieldSelector=selector))
                self._events[-1].start()
