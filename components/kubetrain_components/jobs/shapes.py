"""The shapes of Kubernetes' own objects in a placement, as far as kubetrain reads them or every pod needs them.

A field whose shape is a type must be there. Objects and lists may be missing, and objects have other fields, too.
"""

from collections.abc import Mapping
from typing import Any

from kubetrain_trainer.errors import InvalidSetting

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
WORDS = {str: "a string", int: "a whole number", list: "a list", dict: "an object"}
EXPRESSION = {"key": str, "operator": str, "values": [str]}
NODES = {"matchExpressions": [EXPRESSION], "matchFields": [EXPRESSION]}
FROM_SOURCE = {"secretKeyRef": {"name": str, "key": str}}
CONTAINER = {
    "name": str,
    "image": str,
    "env": [{"name": str, "valueFrom": FROM_SOURCE}],
    "envFrom": [{"secretRef": {"name": str}}],
    "resources": {"requests": {}, "limits": {}},
}
VOLUMES = [{"name": str, "secret": {"secretName": str, "items": [{"key": str}]}}]
SHAPES: dict[str, Any] = {
    "image_pull_secrets": [str],
    "resource_claims": [{"name": str}],
    "affinity": {
        "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [NODES]}},
        "podAffinity": {REQUIRED: [{}]},
        "podAntiAffinity": {REQUIRED: [{}]},
    },
    "topology_spread": [{"maxSkew": int, "topologyKey": str, "whenUnsatisfiable": str}],
    "tolerations": [{}],
    "env_secrets": [str],
    "volumes": VOLUMES,
    "volume_mounts": [{"name": str, "mountPath": str}],
    "init_containers": [CONTAINER],
    "extra_containers": [CONTAINER],
    "code_container": {"container": CONTAINER, "volumes": VOLUMES},
    "shard_cache": {"container": CONTAINER, "volumes": VOLUMES},
    "scale_metrics": [{}],
}
"""Shapes of settings, by name."""
TEXTS = ("extra_resources", "nccl", "node_selector", "labels", "annotations")
"""Settings that are objects of strings, for which numbers and booleans are accepted."""


def check_shape(name: str, value: Any, shape: Any) -> None:
    """
    Raises:
        InvalidSetting: without the value, which may hold secrets.
    """
    kind: Any = shape if isinstance(shape, type) else type(shape)
    if not isinstance(value, kind):
        raise InvalidSetting(f"{name} is not {WORDS[kind]}: write it in Kubernetes' format")
    if isinstance(shape, dict):
        for field, inner in shape.items():
            _check_field(name, field, value.get(field), inner)
    if isinstance(shape, list):
        for number, each in enumerate(value):
            check_shape(f"{name}[{number}]", each, shape[0])


def _check_field(name: str, field: str, value: Any, shape: Any) -> None:
    if not value and isinstance(shape, type):
        raise InvalidSetting(f"{name} has no {field}: write it in Kubernetes' format")
    if value is not None:
        check_shape(f"{name}.{field}", value, shape)


def check_texts(name: str, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if not isinstance(value, str | int | float):
            raise InvalidSetting(f"{name} {key} must be a string, a number, true or false: correct its value")


def check_env(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, dict):
            check_shape(f"env.{name}", value, FROM_SOURCE)
    check_texts("env", {name: value for name, value in values.items() if not isinstance(value, dict)})
