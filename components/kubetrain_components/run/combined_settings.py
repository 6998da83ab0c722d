"""Settings from several sources: parameters of a pipeline, a JSON object, the configuration of a task, the training."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from kubetrain_components.jobs.placement import Placement, is_gpu
from kubetrain_components.jobs.quantity import amount, whole_amount
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
            values[name] = _merge(name, values[name], value, (source_of[name], source)) if name in values else value
            source_of[name] = source
    return kind.from_dict(values)


def settings_of_form(kind: type[Settings], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a run's own parameters set.

    Kubeflow Pipelines sends every parameter, so one at its default may not have been set: it sets nothing.
    """
    return kind.from_dict({name: parameters[name] for name in kind.names() if name in parameters}).changed_settings()


def _merge(name: str, first: Any, second: Any, sources: tuple[str, str]) -> Any:
    """Merge two values: lists and objects add up, unless objects have different values for a key."""
    if isinstance(first, list):
        return [*first, *(each for each in second if each not in first)]
    if isinstance(first, Mapping):
        for key in first.keys() & second.keys():
            _check_equal(f"{name} {key}", first[key], second[key], sources)
        return {**first, **second}
    _check_equal(name, first, second, sources)
    return first


def _check_equal(name: str, first: Any, second: Any, sources: tuple[str, str]) -> None:
    if first != second:
        raise InvalidSetting(f"{name} is {first!r} in {sources[0]} but {second!r} in {sources[1]}: set it in one place")


def place_evaluation(training: Placement, own: Mapping[str, Any]) -> Placement:
    """Return the placement of the evaluation, in which its own settings replace those of the training.

    Raises:
        InvalidSetting: if its own settings cannot be used, or do not fit the training's.
    """
    return Placement.from_dict({**_with_one_gpu(training).changed_settings(), **Placement.some_of(own)})


def _with_one_gpu(training: Placement) -> Placement:
    """Keep RDMA devices: as pods with them run as root, no other user can write to the output."""
    others = {name: each for name, each in training.extra_resources.items() if not is_gpu(name)}
    gpus = [name for name, each in training.extra_resources.items() if is_gpu(name) and amount(str(each))]
    first = {} if training.gpus else dict.fromkeys(gpus[:1], 1)
    return replace(training, gpus=min(training.gpus, 1), extra_resources=others | first)


def placement_settings(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is set on the launch task, such as by `task.set_accelerator_limit(8)`, in Kubernetes' format."""
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
    for name, each in requested.items():
        if name == Placement().rdma_resource:
            settings["rdma"] = whole_amount(str(each))
        elif is_gpu(name) and "gpus" not in settings:
            settings |= {"gpu_resource": name, "gpus": whole_amount(str(each))}
        else:
            settings.setdefault("extra_resources", {})[name] = str(each)
    return settings
