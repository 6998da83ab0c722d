"""Read the snapshots of jobs in a cluster, and of a run in Kubeflow Pipelines with them."""

from collections.abc import Iterable
from dataclasses import replace

from kubetrain_components.jobs.annotations import PROGRESS_ANNOTATION
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import BadRequest, KubernetesError, NotFound
from kubetrain_components.jobs.kubernetes.pod_end import seconds
from kubetrain_components.jobs.kubernetes.state import pods_by_replica
from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.jobs.cluster_jobs import ClusterJob, ClusterJobs
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.run import Run
from kubetrain_pipelines.kubeflow.run_in_cluster import RunInCluster
from kubetrain_pipelines.kubeflow.run_status import status_of
from kubetrain_pipelines.status.snapshot import JobSnapshot, Progress, Snapshot, lead_of, newest_progress
from kubetrain_trainer.reporting.progress_line import parse_progress

LOG_TIMEOUT_SECONDS = 10.0
LAST_LINES = 200


class ClusterReader:
    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    def read_named(self, name: str) -> Snapshot:
        """Return the job of this name, or the newest job of each stage of the run with this ID.

        Raises:
            KubetrainError: if there is none.
        """
        jobs = ClusterJobs(self._api, all_events=False)
        return Snapshot(jobs=self._snapshots(jobs, jobs.named(name)), gaps=jobs.gaps)

    def read_run(self, run_id: str) -> tuple[list[JobSnapshot], list[str]]:
        """Return the jobs of a run that have not ended, and what could not be read."""
        jobs = ClusterJobs(self._api, all_events=False)
        return [job for job in self._snapshots(jobs, jobs.of_run(run_id)) if not job.has_ended], jobs.gaps

    def _snapshots(self, jobs: ClusterJobs, found: Iterable[ClusterJob]) -> list[JobSnapshot]:
        return [self._snapshot(jobs, job) for job in found]

    def _snapshot(self, jobs: ClusterJobs, job: ClusterJob) -> JobSnapshot:
        newest = {name: pods[-1] for name, pods in pods_by_replica(job.pods).items()}
        nodes = {name: pod["spec"]["nodeName"] for name, pod in newest.items() if "nodeName" in pod["spec"]}
        snapshot = JobSnapshot(name=job.name, state=job.state, nodes=nodes)
        return snapshot if snapshot.has_ended else replace(snapshot, progress=self._progress(jobs, job, newest))

    def _progress(self, jobs: ClusterJobs, job: ClusterJob, pods: dict[str, Manifest]) -> Progress | None:
        """Return the progress in the log of rank 0, or else the one that the launcher has noted on the job."""
        lead = lead_of(job.state)
        if lead and job.state.needs_first:  # otherwise another pod may have taken its rank
            name = pods[lead.name]["metadata"]["name"]
            lines = jobs.attempt(f"the log of {lead.name}", lambda: self._last_lines(name, job.kind.traits.container))
            split = (line.partition(" ") for line in reversed(lines or []))
            if progress := newest_progress((text, seconds(time)) for time, _, text in split):
                return progress
        values = parse_progress(job.state.annotations.get(PROGRESS_ANNOTATION, ""))
        return Progress(values=values) if values else None

    def _last_lines(self, pod: str, container: str) -> list[str]:
        path = self._api.path("v1", "pods", f"{pod}/log")
        query = {"container": container, "tailLines": str(LAST_LINES), "timestamps": "true"}
        try:
            with self._api.stream(path, read_timeout=LOG_TIMEOUT_SECONDS, retry_seconds=None, **query) as stream:
                return b"".join(stream).decode(errors="replace").splitlines()
        except (NotFound, BadRequest):  # it has not started, or is gone
            return []


class KubeflowReader:
    def __init__(self, api: KfpApi) -> None:
        self._api = api
        self._cluster: RunInCluster | None = None
        self._gap = ""
        """Why the cluster cannot be asked."""

    def snapshot(self, run: Run) -> Snapshot:
        if run.state.is_final:
            status = status_of(self._api, run)
            return Snapshot(run=status.run, causes=status.causes)
        if (cluster := self._connected(run.id)) is None:
            return Snapshot(run=run, gaps=[self._gap])
        titles = {stage.place: stage.title for stage in run.stages}
        try:
            waiting = [f"{titles.get(place, place)}: {reason}" for place, reason in cluster.waiting().items()]
            jobs, gaps = ClusterReader(cluster.api).read_run(run.id)
        except KubernetesError as error:
            return Snapshot(run=run, gaps=[f"jobs: {error}"])
        return Snapshot(run=run, waiting=waiting, jobs=jobs, gaps=gaps)

    def _connected(self, run_id: str) -> RunInCluster | None:
        if self._cluster is None and not self._gap:
            try:
                self._cluster = RunInCluster.connect(self._api.connection.pods_namespace, run_id)
            except KubernetesError as error:
                self._gap = f"jobs: {error}"
        return self._cluster
