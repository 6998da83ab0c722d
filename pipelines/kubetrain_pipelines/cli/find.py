"""What a name means to `status`, `logs`, `cancel` and `diagnose`: a path, a run in Kubeflow Pipelines, or jobs."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import Misconfigured
from kubetrain_pipelines.jobs.cluster_jobs import ClusterJobs
from kubetrain_pipelines.kubeflow.connection_options import ConnectionOptions
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message
from kubetrain_pipelines.kubeflow.kfp_errors import Forbidden, NotFound, Unauthorized
from kubetrain_pipelines.kubeflow.run import find_run
from kubetrain_pipelines.kubeflow.run_in_cluster import RETRY_SECONDS
from kubetrain_trainer.errors import InvalidSetting, KubetrainError


@dataclass(frozen=True, kw_only=True)
class FoundRun:
    """A run in Kubeflow Pipelines."""

    api: KfpApi
    message: Message

    @property
    def id(self) -> str:
        return str(self.message["run_id"])


def find(name: str, options: ConnectionOptions) -> Path | FoundRun | KubernetesApi:
    """
    Returns:
        The path, the run, or the cluster whose jobs have this name, or are those of the run with this ID. Without an
        endpoint, only reading them shows whether there are any.

    Raises:
        KubetrainError: if nothing has this name, or nothing can be asked for it.
    """
    if not name:
        raise InvalidSetting("a name is empty: name a run, a job, a workspace or log files")
    if Path(name).exists():
        return Path(name)
    if (connection := options.connection()) is None:
        return _cluster(name, options.namespace)
    api = KfpApi(connection)
    try:
        return FoundRun(api=api, message=find_run(api, name))
    except (NotFound, Unauthorized, Forbidden):
        for namespace in dict.fromkeys((options.namespace, connection.pods_namespace)):
            with suppress(KubetrainError):
                cluster = _cluster(name, namespace)
                ClusterJobs(cluster, all_events=False).find(name)
                return cluster
        raise


def _cluster(name: str, namespace: str) -> KubernetesApi:
    try:
        return KubernetesApi.connect(namespace, RETRY_SECONDS)
    except Misconfigured as error:
        raise KubetrainError(
            f"'{name}' is not a file or folder, and no cluster can be asked for a job of this name: {error}"
        ) from error
