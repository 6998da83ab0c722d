"""Read what a cluster tells about jobs: their pods, events, nodes and logs. Nothing is changed."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kubetrain_components.jobs.job_identity import LABEL_LENGTH, slug
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import BadRequest, KubernetesError, NotFound, StreamCut
from kubetrain_components.jobs.kubernetes.followed import LOCAL_QUEUES
from kubetrain_components.jobs.kubernetes.pod_end import container_status, restart_count, status_of
from kubetrain_components.jobs.kubernetes.pod_template import KUEUE_LABEL
from kubetrain_components.jobs.kubernetes.served import list_if_served
from kubetrain_components.jobs.kubernetes.state import is_of, job_state, replica_name
from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.diagnose.case import RUN_ID, STAGE, Case

LOG_TIMEOUT_SECONDS = 30.0
PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")
NOT_STARTED = (NotFound, BadRequest)
"""The answers for the log of a container that has not started, or is gone."""


class ClusterReader:
    def __init__(self, api: KubernetesApi, case: Case, folder: Path) -> None:
        """
        Args:
            folder: For the logs.
        """
        self._api, self._case, self._folder = api, case, folder

    def read_named(self, name: str) -> bool:
        """Read the jobs of this name or of the run with this ID; return False if there are none."""
        return self._read(name, fieldSelector=f"metadata.name={name}") or self.read_run(name)

    def read_run(self, run_id: str) -> bool:
        return self._read("", labelSelector=f"{RUN_ID}={slug(run_id, LABEL_LENGTH)}")

    def _read(self, name: str, **selector: str) -> bool:
        gaps = list(self._case.gaps)
        found = [(kind, job) for kind in JobKind for job in self._jobs(kind, selector)]
        jobs = [(kind, job) for kind, job in found if name in ("", job["metadata"]["name"])]
        self._case.gaps = gaps if jobs else self._case.gaps  # kinds that may not be read no longer matter
        jobs.sort(key=lambda each: str(each[1]["metadata"].get("creationTimestamp")))
        newest = {(job["metadata"].get("labels") or {}).get(STAGE): (kind, job) for kind, job in jobs}
        for kind, job in newest.values():  # earlier attempts of a stage were overcome
            self._read_job(kind, {"kind": kind.value, **job})
        return bool(jobs)

    def _jobs(self, kind: JobKind, selector: dict[str, str]) -> list[Manifest]:
        return self._try(f"{kind.value}s", lambda: list_if_served(self._api, kind.traits.resource, **selector)) or []

    def _read_job(self, kind: JobKind, job: Manifest) -> None:
        name = job["metadata"]["name"]
        selector = f"{kind.traits.job_name_label}={name}"
        pods = self._list("pods", labelSelector=selector)
        events = [event for event in self._list("events") if _concerns(event, name)]
        state = job_state(kind, job, pods, events, self._queues(job))
        self._case.add_job(name, state)
        nodes = [*self._nodes(pods)]
        self._case.statements += [each for node in nodes for each in _node_statements(node)]
        read = {"job": job, "pods": pods, "events": events, "nodes": nodes}
        self._case.documents |= {f"{name}/{part}.json": content for part, content in read.items()}
        for pod in pods:
            if is_of(pod, job):
                self._read_logs(kind, pod)

    def _list(self, plural: str, **query: Any) -> list[Manifest]:
        found = self._try(plural, lambda: self._api.list_all(self._api.path("v1", plural), **query))
        return list((found or {}).get("items") or [])

    def _queues(self, job: Manifest) -> list[Manifest] | None:
        """Return the job's queue of Kueue; None if it has none, or it may not be read."""
        if not (queue := (job["metadata"].get("labels") or {}).get(KUEUE_LABEL)):
            return None
        named: list[Manifest] | None = self._try(
            "queues", lambda: list_if_served(self._api, LOCAL_QUEUES, fieldSelector=f"metadata.name={queue}")
        )
        return named

    def _nodes(self, pods: Sequence[Manifest]) -> Iterator[Manifest]:
        for name in sorted({pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]}):
            if node := self._try("nodes", lambda name=name: self._api.get(f"/api/v1/nodes/{name}")):  # type: ignore[misc]
                yield node

    def _read_logs(self, kind: JobKind, pod: Manifest) -> None:
        main, name = kind.traits.container, replica_name(pod)
        if restart_count(main, pod):
            self._read_log(pod, f"{name}.previous", container=main, previous="true")
        if container_status(main, pod):
            self._read_log(pod, name, container=main)
        for init in status_of(pod).get("initContainerStatuses") or []:
            if ((init.get("state") or {}).get("terminated") or {}).get("exitCode"):
                self._read_log(pod, f"{name}.{init['name']}", container=init["name"])

    def _read_log(self, pod: Manifest, name: str, **query: str) -> None:
        path = self._folder / f"{name}.log"
        self._try(f"the log of {name}", lambda: self._download(pod["metadata"]["name"], path, query))
        if path.exists():
            self._case.logs[path.name] = path

    def _download(self, pod: str, path: Path, query: dict[str, Any]) -> None:
        log = self._api.path("v1", "pods", f"{pod}/log")
        try:
            with self._api.stream(log, read_timeout=LOG_TIMEOUT_SECONDS, **query) as stream, path.open("wb") as file:
                file.writelines(stream)
        except NOT_STARTED:
            path.unlink(missing_ok=True)

    def _try(self, what: str, read: Callable[[], Any]) -> Any:
        """Return what was read; None, and a note of the gap, if it could not be."""
        try:
            return read()
        except (KubernetesError, StreamCut) as error:
            self._case.note_gap(f"{what}: {error}")
            return None


def _concerns(event: Manifest, job: str) -> bool:
    """Return True for events of the job, its pods, and what queues make for it."""
    return job in str((event.get("involvedObject") or {}).get("name", ""))


def _node_statements(node: Manifest) -> Iterator[tuple[str, str]]:
    name = node["metadata"]["name"]
    for condition in (node.get("status") or {}).get("conditions") or []:
        if condition["type"] in PRESSURES and condition["status"] == "True":
            yield f"node {name}", f"NodeHas{condition['type']}: {condition.get('message', '')}"
        if condition["type"] == "Ready" and condition["status"] != "True":
            yield f"node {name}", f"NodeNotReady: {condition.get('message', '')}"
