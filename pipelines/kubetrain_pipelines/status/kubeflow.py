"""Read the snapshots of a run in Kubeflow Pipelines, and of its jobs in the cluster."""

from kubetrain_components.jobs.kubernetes.errors import KubernetesError
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.run import Run
from kubetrain_pipelines.kubeflow.run_in_cluster import RunInCluster
from kubetrain_pipelines.kubeflow.run_status import status_of
from kubetrain_pipelines.status.cluster import ClusterReader
from kubetrain_pipelines.status.snapshot import Snapshot


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
