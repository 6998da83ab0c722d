"""Check that Kubeflow Pipelines answers, and its version."""

from kubetrain_components.jobs.kubernetes.errors import Unreachable
from kubetrain_pipelines.doctor.cluster import Cluster
from kubetrain_pipelines.doctor.finding import Finding, missing, unknown
from kubetrain_pipelines.doctor.installed import judge_kfp
from kubetrain_pipelines.kubeflow.connection import Connection
from kubetrain_pipelines.kubeflow.kfp_api import ROOT, KfpApi, Message
from kubetrain_pipelines.kubeflow.kfp_errors import Forbidden, KfpError, Unauthorized
from kubetrain_pipelines.kubeflow.server_version import HEALTH, OLDEST, ServerHealth

TIMEOUT_SECONDS = 10.0
PORT_FORWARD = (
    "kubectl -n kubeflow port-forward service/ml-pipeline 8888:8888\nkubetrain doctor --endpoint http://localhost:8888"
)
LOOK_AT_SERVER = "kubectl -n kubeflow describe deployment ml-pipeline\nkubectl -n kubeflow logs deployment/ml-pipeline"


def check_pipelines(cluster: Cluster, connection: Connection | None) -> Finding:
    """
    Args:
        connection: The connection that `kubetrain submit` would use; None if no endpoint is configured.
    """
    return _at_endpoint(connection) if connection else _by_service(cluster)


def _at_endpoint(connection: Connection) -> Finding:
    api = KfpApi(connection, retry_seconds=0, timeout_seconds=TIMEOUT_SECONDS)
    try:
        answer = api.get(HEALTH)
        if ServerHealth.of(answer).is_multi_user and not connection.namespace:
            return missing(f"{connection.endpoint} is multi-user, so runs need a profile", "--namespace PROFILE")
        return _judge(answer, connection.endpoint)
    except (Unauthorized, Forbidden) as error:
        return unknown(str(error))
    except KfpError as error:
        return missing(str(error), PORT_FORWARD)


def _by_service(cluster: Cluster) -> Finding:
    """Ask through the proxy of the API server, which needs no port-forward."""
    for namespace in dict.fromkeys(("kubeflow", cluster.namespace)):
        services = f"/api/v1/namespaces/{namespace}/services"
        if cluster.get(f"{services}/ml-pipeline") is None:
            continue
        try:
            answer = cluster.get(f"{services}/ml-pipeline:8888/proxy{ROOT}{HEALTH}")
        except Unreachable as error:
            return missing(f"the service ml-pipeline in {namespace} does not answer ({error.__cause__})", PORT_FORWARD)
        return _judge(answer or {}, f"the service ml-pipeline in {namespace}")
    return judge_kfp(None, "")


def _judge(answer: Message, source: str) -> Finding:
    health = ServerHealth.of(answer)
    if not health.is_ready:
        return missing(f"the UI at {source} answers, but its API server does not", LOOK_AT_SERVER)
    if health.is_older_than(OLDEST):
        return missing(f"version {health.tag}, at {source}, cannot run the pipelines", "upgrade to 2.17")
    return judge_kfp({**answer, "tag_name": health.tag}, source)
