"""Read jobs in a cluster, with their pods and events, as far as that is permitted. Nothing is changed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kubetrain_components.jobs.annotations import KUEUE_LABEL, RUN_ID, STAGE
from kubetrain_components.jobs.job_identity import run_label
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import JobState
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import KubernetesError, StreamCut, Unreachable
from kubetrain_components.jobs.kubernetes.followed import LOCAL_QUEUES
from kubetrain_components.jobs.kubernetes.served import list_if_served
from kubetrain_components.jobs.kubernetes.state import is_of, job_state
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.errors import KubetrainError

T = TypeVar("T")
FoundJob = tuple[JobKind, Manifest]


@dataclass(frozen=True, kw_only=True)
class ClusterJob:
    kind: JobKind
    manifest: Manifest
    pods: list[Manifest]
    """Its own pods, without those of an earlier job of the same name."""
    events: list[Manifest]
    """Events of the job, its pods, and what queues make for it."""
    state: JobState

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])


class ClusterJobs:
    def __init__(self, api: KubernetesApi, *, all_events: bool) -> None:
        """
        Args:
            all_events: Read the events of every job, not only of those that are not under way: the API server lists
                those of the whole namespace.
        """
        self.gaps: list[str] = []
        """The parts that could not be read, and why."""
        self._api, self._all_events = api, all_events

    def named(self, name: str) -> list[ClusterJob]:
        """Return the jobs of this name, or else the newest of each stage of the run with this ID.

        Raises:
            KubetrainError: if there are none.
        """
        return self._read_newest(self.find(name))

    def of_run(self, run_id: str) -> list[ClusterJob]:
        """Return the newest job of each stage: the earlier attempts were overcome."""
        return self._read_newest(self._find_run(run_id))

    def find(self, name: str) -> list[FoundJob]:
        """Return the manifests of the jobs of this name, or else of all jobs of the run with this ID.

        Raises:
            KubetrainError: if there are none.
        """
        found = self._find(fieldSelector=f"metadata.name={name}")
        if found := [each for each in found if each[1]["metadata"]["name"] == name] or self._find_run(name):
            return found
        unread = f" ({'; '.join(dict.fromkeys(self.gaps))})" if self.gaps else ""
        raise KubetrainError(
            f"namespace {self._api.namespace} has no job or run named '{name}'{unread}: check the name and "
            "--namespace; a run in Kubeflow Pipelines needs --endpoint"
        )

    def _find_run(self, run_id: str) -> list[FoundJob]:
        return self._find(labelSelector=f"{RUN_ID}={run_label(run_id)}")

    def _read_newest(self, found: list[FoundJob]) -> list[ClusterJob]:
        found.sort(key=lambda each: str(each[1]["metadata"].get("creationTimestamp")))
        newest = {(job["metadata"].get("labels") or {}).get(STAGE): (kind, job) for kind, job in found}
        return [self._read(kind, job) for kind, job in newest.values()]

    def attempt(self, what: str, read: Callable[[], T]) -> T | None:
        """Return what was read; None, and a note of the gap, if it could not be."""
        try:
            return read()
        except (KubernetesError, StreamCut) as error:
            self.gaps.append(f"{what}: {error}")
            return None

    def _find(self, **selector: str) -> list[FoundJob]:
        before = list(self.gaps)
        found = [(kind, {"kind": kind.value, **job}) for kind in JobKind for job in self._list_kind(kind, selector)]
        self.gaps = before if found else self.gaps  # kinds that may not be read no longer matter
        return found

    def _list_kind(self, kind: JobKind, selector: Mapping[str, Any]) -> list[Manifest]:
        """
        Raises:
            Unreachable: if the API server does not answer, which it would not for the other kinds either.
        """
        try:
            return list_if_served(self._api, kind.traits.resource, **selector)
        except Unreachable:
            raise
        except KubernetesError as error:
            self.gaps.append(f"{kind}s: {error}")
            return []

    def _read(self, kind: JobKind, job: Manifest) -> ClusterJob:
        name = job["metadata"]["name"]
        listed = self._list("pods", labelSelector=f"{kind.traits.job_name_label}={name}")
        pods = [pod for pod in listed or [] if is_of(pod, job)]
        state = job_state(kind, job, pods)
        if listed is None:  # a job without pods would seem to have troubles
            state = replace(state, troubles=())
            return ClusterJob(kind=kind, manifest=job, pods=[], events=[], state=state)
        needs_events = self._all_events or not (state.is_over or state.is_under_way)
        events = [item for item in self._list("events") or [] if _concerns(item, name)] if needs_events else []
        state = job_state(kind, job, pods, events, self._queues(job)) if needs_events else state
        return ClusterJob(kind=kind, manifest=job, pods=pods, events=events, state=state)

    def _list(self, plural: str, **query: Any) -> list[Manifest] | None:
        """Return None, and note the gap, if they could not be read."""
        path = self._api.path("v1", plural)
        return self.attempt(plural, lambda: list((self._api.list_all(path, **query) or {}).get("items") or []))

    def _queues(self, job: Manifest) -> list[Manifest] | None:
        """Return the job's queue of Kueue; None if it has none, or it may not be read."""
        if not (queue := (job["metadata"].get("labels") or {}).get(KUEUE_LABEL)):
            return None
        return self.attempt(
            "queues", lambda: list_if_served(self._api, LOCAL_QUEUES, fieldSelector=f"metadata.name={queue}")
        )


def _concerns(event: Manifest, job: str) -> bool:
    return job in str((event.get("involvedObject") or {}).get("name", ""))
