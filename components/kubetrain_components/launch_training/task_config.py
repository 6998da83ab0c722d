"""Translate the settings of the launch task in a pipeline into placement settings of the training pods.

Kubeflow Pipelines passes `task.set_accelerator_limit(8)` or `kubernetes.mount_pvc(task, …)` on in Kubernetes' format.
"""

from collections.abc import Mapping
from typing import Any

from kubetrain_components.jobs.placement import Placement, is_gpu
from kubetrain_components.jobs.quantity import whole_amount

MLFLOW = "MLFLOW_"


def placement_settings(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return only settings that are set on the task."""
    settings = {
        **_resources(task.get("resources") or {}),
        "env": {each["name"]: each.get("valueFrom") or each.get("value", "") for each in task.get("env") or []},
        "affinity": task.get("affinity"),
        "tolerations": task.get("tolerations"),
        "node_selector": task.get("node_selector"),
        "volumes": task.get("volumes"),
        "volume_mounts": task.get("volume_mounts"),
    }
    return {name: value for name, value in settings.items() if value}


def without_mlflow(settings: Mapping[str, Any], placement: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task's settings, without the MLflow run that Kubeflow Pipelines gives it if the placement names a
    server of its own: both would contradict each other."""
    own = {**placement.get("env", {}), **placement.get("secret_env", {})}
    if not any(name.startswith(MLFLOW) for name in own) or "env" not in settings:
        return dict(settings)
    env = {name: value for name, value in settings["env"].items() if not name.startswith(MLFLOW)}
    return {**settings, "env": env}


def _resources(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for the resources. As in Kubernetes, a limit without a request is also the request."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    requested = {**limits, **requests}
    settings: dict[str, Any] = {
        "cpu": requested.pop("cpu", ""),
        "cpu_limit": limits.get("cpu", ""),
        "memory": requested.pop("memory", ""),
        "memory_limit": limits.get("memory", ""),
    }
    for name, amount in requested.items():
        if name == Placement().rdma_resource:
            settings["rdma"] = whole_amount(str(amount))
        elif is_gpu(name) and "gpus" not in settings:
            settings |= {"gpu_resource": name, "gpus": whole_amount(str(amount))}
        else:
            settings.setdefault("extra_resources", {})[name] = str(amount)
    return settings
