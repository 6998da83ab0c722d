"""Whether Kubeflow Pipelines answers, and as which version."""

import json
import urllib.error
import urllib.request

from kubetrain_components.jobs.kubernetes_errors import Unreachable
from kubetrain_pipelines.doctor.cluster import Cluster
from kubetrain_pipelines.doctor.finding import Finding, missing, unknown
from kubetrain_pipelines.doctor.installed import judge_kfp
from kubetrain_trainer.errors import InvalidSetting

ANSWER_SECONDS = 10
HEALTH = "/apis/v2beta1/healthz"
PORT_FORWARD = (
    "kubectl -n kubeflow port-forward service/ml-pipeline 8888:8888\nkubetrain doctor --endpoint http://localhost:8888"
)


def check_endpoint(endpoint: str) -> None:
    """
    Raises:
        InvalidSetting: where it is no URL.
    """
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise InvalidSetting(f"--endpoint '{endpoint}' is no URL: write http://HOST:PORT")


def find_pipelines(cluster: Cluster, endpoint: str) -> Finding:
    return _at_endpoint(endpoint) if endpoint else _by_service(cluster)


def _at_endpoint(endpoint: str) -> Finding:
    try:
        with urllib.request.urlopen(endpoint.rstrip("/") + HEALTH, timeout=ANSWER_SECONDS) as answer:  # noqa: S310
            return judge_kfp(dict(json.loads(answer.read(1 << 16))), endpoint)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return unknown(f"{endpoint} answers, but wants to know who asks (status {error.code})")
        return missing(f"{endpoint} answers with status {error.code}", PORT_FORWARD)
    except (ValueError, TypeError):
        return missing(f"what answers at {endpoint} is no API of Kubeflow Pipelines", PORT_FORWARD)
    except OSError as error:
        return missing(f"{endpoint} does not answer ({error})", PORT_FORWARD)


def _by_service(cluster: Cluster) -> Finding:
    """Through the API server: whoever may use its proxy needs no port-forward."""
    for namespace in dict.fromkeys(("kubeflow", cluster.namespace)):
        services = f"/api/v1/namespaces/{namespace}/services"
        if cluster.get(f"{services}/ml-pipeline") is None:
            continue
        try:
            answer = cluster.get(f"{services}/ml-pipeline:8888/proxy{HEALTH}")
        except Unreachable as error:
            return missing(f"the service ml-pipeline in {namespace} does not answer ({error.__cause__})", PORT_FORWARD)
        return judge_kfp(answer or {}, f"the service ml-pipeline in {namespace}")
    return judge_kfp(None, "")
