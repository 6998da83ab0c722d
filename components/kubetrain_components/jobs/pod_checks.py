"""Checks of a pod patch, before anything is made: its fields, their shapes, and what other settings decide."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kubetrain_components.jobs.names import check_object_name
from kubetrain_components.jobs.pod_patch import MAIN, STANDARD, named
from kubetrain_components.jobs.quantity import QUANTITY, amount
from kubetrain_trainer.errors import InvalidSetting, did_you_mean

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
WORDS = {str: "a string", int: "a whole number", list: "a list", dict: "an object"}
EXPRESSION = {"key": str, "operator": str, "values": [str]}
NODES = {"matchExpressions": [EXPRESSION], "matchFields": [EXPRESSION]}
FROM_SOURCE = {"secretKeyRef": {"name": str, "key": str}}
CONTAINER = {
    "name": str,
    "env": [{"name": str, "valueFrom": FROM_SOURCE}],
    "envFrom": [{"secretRef": {"name": str}}],
    "resources": {"requests": {}, "limits": {}, "claims": [{"name": str}]},
    "ports": [{"containerPort": int}],
    "volumeMounts": [{"name": str, "mountPath": str}],
}
POD: dict[str, Any] = {
    "metadata": {"labels": {}, "annotations": {}},
    "spec": {
        "affinity": {
            "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [NODES]}},
            "podAffinity": {REQUIRED: [{}]},
            "podAntiAffinity": {REQUIRED: [{}]},
        },
        "containers": [CONTAINER],
        "initContainers": [{**CONTAINER, "image": str}],
        "imagePullSecrets": [{"name": str}],
        "nodeSelector": {},
        "resourceClaims": [{"name": str}],
        "securityContext": {},
        "tolerations": [{}],
        "topologySpreadConstraints": [{"maxSkew": int, "topologyKey": str, "whenUnsatisfiable": str}],
        "volumes": [{"name": str, "secret": {"secretName": str, "items": [{"key": str}]}}],
    },
}
"""The shape of a patch. A field whose shape is a type must be there; others may be missing, and objects have more."""
SPEC = {
    *POD["spec"],
    *("automountServiceAccountToken", "dnsConfig", "dnsPolicy", "enableServiceLinks", "hostAliases", "hostIPC"),
    *("hostPID", "hostUsers", "hostname", "hostnameOverride", "nodeName", "os", "overhead", "preemptionPolicy"),
    *("priority", "priorityClassName", "readinessGates", "resources", "runtimeClassName", "schedulerName"),
    *("schedulingGates", "serviceAccount", "serviceAccountName", "setHostnameAsFQDN", "shareProcessNamespace"),
    *("subdomain", "ephemeralContainers"),
}
ELSEWHERE = {
    **{"restartPolicy": "set pods.restart_policy", "hostNetwork": "set pods.host_network"},
    "terminationGracePeriodSeconds": "set pods.grace_seconds",
    "activeDeadlineSeconds": "set pods.deadline_seconds",
}
"""Fields of a pod's spec that other settings decide."""
ELSEWHERE_IN_MAIN = {
    **dict.fromkeys(("command", "args"), "set train.entry"),
    **{"image": "set pods.image", "env": "set pods.env, pods.secret_env or pods.nccl"},
}
"""Fields of the main container that other settings decide."""
QUALIFIED_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[-._a-zA-Z0-9]+")
"""A key of a secret, or a device of a plugin."""
OBJECTS = ("runtimeClassName", "priorityClassName", "serviceAccountName")


def check_pod(pod: Mapping[str, Any]) -> None:
    """
    Raises:
        InvalidSetting: for the first problem, without values, which may hold secrets.
    """
    for name in pod:
        if name not in POD:
            raise InvalidSetting(f"pods.pod has no field '{name}': {did_you_mean(name, POD)}")
    check_shape("pods.pod", pod, POD)
    spec = pod.get("spec") or {}
    for problem in (*_metadata_problems(pod), *_spec_problems(spec)):
        raise InvalidSetting(problem)
    for field in (field for field in OBJECTS if spec.get(field)):
        check_object_name(f"pods.pod.spec.{field}", str(spec[field]))


def _metadata_problems(pod: Mapping[str, Any]) -> Iterator[str]:
    for field, values in (pod.get("metadata") or {}).items():
        if field not in POD["metadata"]:
            yield f"pods.pod.metadata.{field} cannot be set: only labels and annotations can"
        else:
            check_texts(f"pods.pod.metadata.{field}", values)


def _spec_problems(spec: Mapping[str, Any]) -> Iterator[str]:
    for field in spec:
        if field in ELSEWHERE:
            yield f"pods.pod.spec.{field} cannot be set there: {ELSEWHERE[field]}"
        if field not in SPEC:
            yield f"pods.pod.spec has no field '{field}': {did_you_mean(field, SPEC)}"
    check_texts("pods.pod.spec.nodeSelector", spec.get("nodeSelector") or {})
    main = named(spec.get("containers"), MAIN)
    for field in (field for field in main if field in ELSEWHERE_IN_MAIN):
        yield f"pods.pod cannot set {field} of the main container: {ELSEWHERE_IN_MAIN[field]}"
    yield from _resource_problems(main.get("resources") or {})
    for container in spec.get("containers") or []:
        if container["name"] != MAIN and not container.get("image"):
            yield f"container {container['name']} of pods.pod has no image: name the container that trains '{MAIN}'"


def _resource_problems(resources: Mapping[str, Any]) -> Iterator[str]:
    for kind in ("requests", "limits"):
        for name, value in (resources.get(kind) or {}).items():
            if not QUANTITY.fullmatch(str(value)):
                yield f"{kind} of {name} '{value}' is not a Kubernetes quantity: write it like 500m, 4 or 16Gi"
            elif name in STANDARD[:2] and (kind == "requests" or not amount(str(value))):
                own = f"pods.pod cannot request {name}: set pods.{name}"
                yield own if kind == "requests" else f"the limit of {name} is {value}: set more, or none"


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
        for number, item in enumerate(value):
            check_shape(f"{name}[{number}]", item, shape[0])


def _check_field(name: str, field: str, value: Any, shape: Any) -> None:
    if not value and isinstance(shape, type):
        raise InvalidSetting(f"{name} has no {field}: write it in Kubernetes' format")
    if value is not None:
        check_shape(f"{name}.{field}", value, shape)


def check_texts(name: str, values: Mapping[str, Any]) -> None:
    """Check an object of strings, for which numbers and booleans are accepted."""
    for key, value in values.items():
        if not isinstance(value, str | int | float):
            raise InvalidSetting(f"{name}.{key} must be a string, a number, true or false: correct its value")


def check_env(values: Mapping[str, Any], secrets: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, dict):
            check_shape(f"pods.env.{name}", value, FROM_SOURCE)
    check_texts("pods.env", {name: value for name, value in values.items() if not isinstance(value, dict)})
    for name, source in secrets.items():
        if not QUALIFIED_NAME.fullmatch(str(source)):
            raise InvalidSetting(f"pods.secret_env.{name} must be SECRET/KEY, not '{source}'")


def check_rdma(counts: Mapping[str, Any]) -> None:
    for name, count in counts.items():
        if not QUALIFIED_NAME.fullmatch(name):
            raise InvalidSetting(f"pods.rdma needs resource names with a domain, such as rdma/hca, not '{name}'")
        if type(count) is not int or count < 1:
            raise InvalidSetting(f"pods.rdma.{name} must be a whole number above 0, not {count!r}")
