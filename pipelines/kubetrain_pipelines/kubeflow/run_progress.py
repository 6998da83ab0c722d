"""How far the jobs of a run are, which the API of Kubeflow Pipelines does not tell."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kubetrain_components.jobs.kubernetes.errors import KubernetesError

if TYPE_CHECKING:
    from kubetrain_pipelines.kubeflow.run_in_cluster import Progress, RunInCluster


class RunProgress:
    """Read from the cluster where that is in reach; where it is not, it is tried once."""

    def __init__(self, namespace: str, run_id: str) -> None:
        self._namespace, self._run_id = namespace, run_id
        self._cluster: RunInCluster | None = None
        self._in_reach = True
        self._told: Mapping[str, Progress] = {}

    def news(self) -> dict[str, "Progress"]:
        """By task, what was not told before."""
        before, self._told = self._told, self._by_task() or self._told
        return {task: progress for task, progress in self._told.items() if before.get(task) != progress}

    def _by_task(self) -> Mapping[str, "Progress"]:
        from kubetrain_pipelines.kubeflow.run_in_cluster import RunInCluster

        if not self._in_reach:
            return {}
        try:
            self._cluster = self._cluster or RunInCluster.connect(self._namespace, self._run_id)
            return self._cluster.progress()
        except KubernetesError:
            self._in_reach = self._cluster is not None
            return {}
