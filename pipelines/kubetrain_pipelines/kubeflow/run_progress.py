"""The progress of a run's jobs, which the API of Kubeflow Pipelines does not report."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kubetrain_components.jobs.kubernetes.errors import KubernetesError

if TYPE_CHECKING:
    from kubetrain_pipelines.kubeflow.run_in_cluster import Progress, RunInCluster


class RunProgress:
    """Progress read from the cluster. If the first connection fails, there is none."""

    def __init__(self, namespace: str, run_id: str) -> None:
        self._namespace, self._run_id = namespace, run_id
        self._cluster: RunInCluster | None = None
        self._is_reachable = True
        self._last: Mapping[str, Progress] = {}

    def changes(self) -> dict[str, "Progress"]:
        """Return the progress by task, only of tasks whose progress changed since the last call."""
        before, self._last = self._last, self._read() or self._last
        return {task: progress for task, progress in self._last.items() if before.get(task) != progress}

    def _read(self) -> Mapping[str, "Progress"]:
        from kubetrain_pipelines.kubeflow.run_in_cluster import RunInCluster

        if not self._is_reachable:
            return {}
        try:
            self._cluster = self._cluster or RunInCluster.connect(self._namespace, self._run_id)
            return self._cluster.progress()
        except KubernetesError:
            self._is_reachable = self._cluster is not None
            return {}
