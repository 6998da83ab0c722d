"""Read what a cluster tells about jobs: their pods, events, nodes and logs. Nothing is changed."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import BadRequest, NotFound
from kubetrain_components.jobs.kubernetes.pod_end import container_status, restart_count, status_of
from kubetrain_components.jobs.kubernetes.state import replica_name
from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.diagnose.case import Case
from kubetrain_pipelines.jobs.cluster_jobs import ClusterJob, ClusterJobs

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
        self._jobs = ClusterJobs(api, all_events=True)
        self._owners: dict[str, str] = {}
        """The pod whose logs have the replica's name."""

    def read_named(self, name: str) -> None:
        """Read the jobs of this name or of the run with this ID.

        Raises:
            KubetrainError: if there are none.
        """
        self._read(self._jobs.named(name))

    def read_run(self, run_id: str) -> None:
        self._read(self._jobs.of_run(run_id))

    def _read(self, jobs: Sequence[ClusterJob]) -> None:
        for job in jobs:
            self._read_job(job)
        for gap in self._jobs.gaps:
            self._case.note_gap(gap)

    def _read_job(self, job: ClusterJob) -> None:
        self._case.add_job(job.name, job.state)
        nodes = [*self._nodes(job.pods)]
        self._case.statements += [statement for node in nodes for statement in _node_statements(node)]
        read = {"job": job.manifest, "pods": job.pods, "events": job.events, "nodes": nodes}
        self._case.documents |= {f"{job.name}/{part}.json": content for part, content in read.items()}
        for pod in job.pods:
            self._read_logs(job.kind, pod)

    def _nodes(self, pods: Sequence[Manifest]) -> Iterator[Manifest]:
        for name in sorted({pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]}):
            if node := self._jobs.attempt("nodes", lambda name=name: self._api.get(f"/api/v1/nodes/{name}")):  # type: ignore[misc]
                yield node

    def _read_logs(self, kind: JobKind, pod: Manifest) -> None:
        main, name = kind.traits.container, self._log_name(pod)
        if restart_count(main, pod):
            self._read_log(pod, f"{name}.previous", container=main, previous="true")
        if container_status(main, pod):
            self._read_log(pod, name, container=main)
        for init in status_of(pod).get("initContainerStatuses") or []:
            if ((init.get("state") or {}).get("terminated") or {}).get("exitCode"):
                self._read_log(pod, f"{name}.{init['name']}", container=init["name"])

    def _log_name(self, pod: Manifest) -> str:
        """Return the replica's name, or the pod's if another pod was that replica before."""
        name = pod["metadata"]["name"]
        return name if self._owners.setdefault(replica_name(pod), name) != name else replica_name(pod)

    def _read_log(self, pod: Manifest, name: str, **query: str) -> None:
        path = self._folder / f"{name}.log"
        self._jobs.attempt(f"the log of {name}", lambda: self._download(pod["metadata"]["name"], path, query))
        if path.exists():
            self._case.logs[path.name] = path

    def _download(self, pod: str, path: Path, query: dict[str, Any]) -> None:
        log = self._api.path("v1", "pods", f"{pod}/log")
        try:
            with self._api.stream(log, read_timeout=LOG_TIMEOUT_SECONDS, **query) as stream, path.open("wb") as file:
                file.writelines(stream)
        except NOT_STARTED:
            path.unlink(missing_ok=True)


def _node_statements(node: Manifest) -> Iterator[tuple[str, str]]:
    name = node["metadata"]["name"]
    for condition in (node.get("status") or {}).get("conditions") or []:
        if condition["type"] in PRESSURES and condition["status"] == "True":
            yield f"node {name}", f"NodeHas{condition['type']}: {condition.get('message', '')}"
        if condition["type"] == "Ready" and condition["status"] != "True":
            yield f"node {name}", f"NodeNotReady: {condition.get('message', '')}"
