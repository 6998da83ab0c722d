"""Settings from several sources: a run, the configuration of a task, the training."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from kubetrain_components.jobs.placement import Placement, is_gpu, is_rdma
from kubetrain_components.jobs.pod_patch import KEYS, merge, pod_patch, without_devices
from kubetrain_components.jobs.quantity import amount, whole_amount
from kubetrain_components.manifest import without_empty
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.base import Settings

MLFLOW = "MLFLOW_"

Kind = TypeVar("Kind", bound=Settings)


def combine_settings(kind: type[Kind], sources: Mapping[str, Mapping[str, Any]]) -> Kind:
    """Combine the settings of several sources. Everything in a source counts as set, even at its default.

    Args:
        sources: The settings of each source, by its name in messages.

    Raises:
        InvalidSetting: if two sources contradict each other, or a setting cannot be used.
    """
    values: dict[str, Any] = {}
    source_of: dict[str, str] = {}
    for source, given in sources.items():
        for name, value in kind.some_of(given).items():
            values[name] = (
                _merge(kind.public_name(name), values[name], value, (source_of[name], source))
                if name in values
                else value
            )
            source_of[name] = source
    return kind.from_dict(values)


def _merge(name: str, first: Any, second: Any, sources: tuple[str, str]) -> Any:
    """Merge two values: lists and objects add up, unless they have different values for a key."""
    if isinstance(first, list):
        field = name.rpartition(" ")[2]
        _check_items(name, first, second, KEYS.get(field, ""), sources)
        return merge({field: first}, {field: second})[field]
    if isinstance(first, Mapping):
        both = {key: _merge(f"{name} {key}", first[key], second[key], sources) for key in first.keys() & second.keys()}
        return {**first, **second, **both}
    _check_equal(name, first, second, sources)
    return first


def _check_items(name: str, first: list[Any], second: list[Any], key: str, sources: tuple[str, str]) -> None:
    """Check the items of two lists that merge because they have the same key."""
    known = {item[key]: item for item in first} if key else {}
    for item in (item for item in second if key and item[key] in known):
        _merge(f"{name} {item[key]}", known[item[key]], item, sources)


def _check_equal(name: str, first: Any, second: Any, sources: tuple[str, str]) -> None:
    if first != second:
        raise InvalidSetting(f"{name} is {first!r} in {sources[0]} but {second!r} in {sources[1]}: set it in one place")


def place_evaluation(training: Placement, own: Mapping[str, Any]) -> Placement:
    """Return the placement of the evaluation, in which its own settings replace those of the training.

    Raises:
        InvalidSetting: if its own settings cannot be used, or do not fit the training's.
    """
    given, base = Placement.some_of(own), _with_one_gpu(training)
    return Placement.from_dict({**base.changed_settings(), **given, "pod": merge(base.pod, given.get("pod", {}))})


def _with_one_gpu(training: Placement) -> Placement:
    """Keep RDMA devices: as pods with them run as root, no other user can write to the output."""
    gpus = [name for name, count in training.devices.items() if is_gpu(name) and amount(str(count))]
    kept = [] if training.gpus else gpus[:1]
    others = {name: value for name, value in {**training.limits, **training.devices}.items() if not is_gpu(name)}
    limits = {**others, **dict.fromkeys(kept, 1)}
    pod = training.pod if training.limits == limits else without_devices(training.pod, limits)
    return replace(training, gpus=min(training.gpus, 1), pod=pod)


def placement_settings(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is set on the launch task, such as by `task.set_accelerator_limit(8)`, in Kubernetes' format."""
    settings, limits = _resources(task.get("resources") or {})
    spec = {"nodeSelector": task.get("node_selector"), "affinity": task.get("affinity")}
    spec |= {name: task.get(name) for name in ("tolerations", "volumes")}
    main = {"volumeMounts": task.get("volume_mounts") or [], "resources": {"limits": limits} if limits else {}}
    pod = pod_patch({name: value for name, value in spec.items() if value}, main)
    env = {item["name"]: item.get("valueFrom") or item.get("value", "") for item in task.get("env") or []}
    return without_empty({**settings, "env": env, "pod": pod})


def without_mlflow(settings: Mapping[str, Any], placement: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task's settings, without the MLflow run that Kubeflow Pipelines gives it if the placement names a
    server of its own: both would contradict each other."""
    own = {**placement.get("env", {}), **placement.get("secret_env", {})}
    if not any(name.startswith(MLFLOW) for name in own) or "env" not in settings:
        return dict(settings)
    env = {name: value for name, value in settings["env"].items() if not name.startswith(MLFLOW)}
    return {**settings, "env": env}


def _resources(resources: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return settings for the resources, and limits that differ from them or have none. As in Kubernetes, a limit
    without a request is also the request."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    requested = {**limits, **requests}
    settings: dict[str, Any] = {name: requested.pop(name, "") for name in ("cpu", "memory")}
    others = {name: limits[name] for name in ("cpu", "memory") if name in limits}
    for name, amount_of in requested.items():
        if is_rdma(name):
            settings["rdma"] = {**settings.get("rdma", {}), name: whole_amount(str(amount_of))}
        elif is_gpu(name) and "gpus" not in settings:
            settings |= {"gpu_resource": name, "gpus": whole_amount(str(amount_of))}
        else:
            others[name] = str(amount_of)
    return settings, others
