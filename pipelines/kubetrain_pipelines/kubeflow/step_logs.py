"""The logs of a run's steps, which the v2beta1 API of Kubeflow Pipelines does not have."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kubetrain_components.jobs.kubernetes.errors import KubernetesError
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError
from kubetrain_pipelines.kubeflow.log_routes import KfpLogs
from kubetrain_pipelines.kubeflow.run import Run
from kubetrain_pipelines.kubeflow.stage_state import StageState

if TYPE_CHECKING:
    from kubetrain_pipelines.kubeflow.run_in_cluster import RunInCluster

LAST_TRIES = 3


class NoLog(KfpError):
    """Nothing has been logged yet, or the log was not kept."""


@dataclass(frozen=True)
class StepLog:
    stage: StageState
    node: str
    text: str


class StepLogs:
    """The logs in Kubeflow Pipelines, which keeps them longer than the cluster keeps pods, or else in the cluster."""

    def __init__(self, api: KfpApi, run: Run) -> None:
        self._kfp = KfpLogs(api, run)
        self._cluster = ClusterLogs(api, run.id)

    def of(self, stages: Iterable[StageState]) -> Iterator[StepLog]:
        """Yield the log of each attempt of each stage, if there is one."""
        for stage in stages:
            for node in stage.attempts:
                text = self._kfp.read(node)
                if (text := self._cluster.read(node) if text is None else text) is not None:
                    yield StepLog(stage, node, text)

    @property
    def trouble(self) -> str:
        """Why the cluster could not be asked, if it was needed and could not."""
        return self._cluster.trouble


class ClusterLogs:
    """The logs of pods in the configured cluster, if there is a cluster and it has the run."""

    def __init__(self, api: KfpApi, run_id: str) -> None:
        self.trouble = ""
        """Why the cluster cannot be asked."""
        self._api, self._run_id = api, run_id
        self._run: RunInCluster | None = None

    @property
    def is_connected(self) -> bool:
        return self._run is not None

    def read(self, node: str) -> str | None:
        """Return the log of a node's pod; None if there is none."""
        try:
            return run.log_of(node) if (run := self._connected()) else None
        except KubernetesError as error:
            self.trouble = str(error)
            return None

    def new_lines(self, node: str, *, is_over: bool) -> list[str] | None:
        """Return the lines since the last call; None if the cluster does not have the log, or the rest of one that is
        complete."""
        for _ in range(LAST_TRIES if is_over else 1):  # a stream that breaks off is read again from the same position
            with contextlib.suppress(KubernetesError):
                return run.new_lines_of(node, is_over=is_over) if (run := self._connected()) else None
        return None if is_over else []

    def _connected(self) -> "RunInCluster | None":
        from kubetrain_pipelines.kubeflow.run_in_cluster import RunInCluster

        if self._run is None and not self.trouble:
            try:
                self._run = RunInCluster.connect(self._api.connection.pods_namespace, self._run_id)
            except KubernetesError as error:
                self.trouble = str(error)
        return self._run
