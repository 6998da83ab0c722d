"""The time zone of cron schedules, which only the deployment of Kubeflow Pipelines knows."""

from typing import Any

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import KubernetesError
from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.kubeflow.connection import SYSTEM_NAMESPACE

DEPLOYMENT = "ml-pipeline-scheduledworkflow"
VARIABLE = "CRON_SCHEDULE_TIMEZONE"
RETRY_SECONDS = 5.0
LOCAL = "the local zone of its container, usually UTC"


class UnknownZone(KubernetesError):
    """The deployment does not tell the zone in a way that can be followed."""


def describe_cron_zone() -> str:
    """Return a sentence that says whether the zone was read or is assumed."""
    try:
        zone = _read_zone(KubernetesApi.connect(SYSTEM_NAMESPACE, RETRY_SECONDS))
    except KubernetesError as error:
        return f"cron times are assumed to be in UTC, the default: {VARIABLE} of {DEPLOYMENT} was not read ({error})"
    return f"cron times are in {zone}, says the deployment {DEPLOYMENT} in the cluster of your KUBECONFIG"


def _read_zone(api: KubernetesApi) -> str:
    deployment = api.get(api.path("apps/v1", "deployments", DEPLOYMENT))
    if deployment is None:
        raise UnknownZone(f"the cluster of your KUBECONFIG has none in namespace {api.namespace}")
    containers = deployment["spec"]["template"]["spec"]["containers"]
    variables = [item for container in containers for item in container.get("env") or [] if item["name"] == VARIABLE]
    zone = _value(api, variables[-1]) if variables else ""
    return LOCAL if zone in ("", "Local") else zone


def _value(api: KubernetesApi, variable: dict[str, Any]) -> str:
    reference = (variable.get("valueFrom") or {}).get("configMapKeyRef")
    if reference is None:
        if "value" not in variable and "valueFrom" in variable:
            raise UnknownZone(f"it comes from {', '.join(variable['valueFrom'])}")
        return str(variable.get("value", ""))
    config_map: Manifest | None = api.get(api.path("v1", "configmaps", reference["name"]))
    data = (config_map or {}).get("data") or {}
    if reference["key"] not in data and not reference.get("optional"):
        raise UnknownZone(f"the ConfigMap {reference['name']} has no {reference['key']}")
    return str(data.get(reference["key"], ""))
