"""The main container of a pod as settings of pods: resources, environment, identity."""

import re
from typing import Any

from kubetrain_components.jobs.placement import NCCL_NAMES, Placement, is_gpu, is_rdma
from kubetrain_components.jobs.quantity import whole_amount
from kubetrain_components.secret_values import is_secret
from kubetrain_pipelines.translate.draft import Draft
from kubetrain_pipelines.translate.fields import Fields

SET_BY_LAUNCHER = re.compile(r"PET_\w+|MASTER_(ADDR|PORT)|(LOCAL_)?RANK|WORLD_SIZE|TF_CONFIG|JOB_COMPLETION_INDEX")
LOCKS_MEMORY = "IPC_LOCK"
EXPANDED = (
    "{name} refers to other variables: Kubernetes expands only those before it, and kubetrain sorts them by name, with "
    "those from Secrets last"
)
OPERATOR_LABEL = "training.kubeflow.org/"
SET_BY_OPERATOR = "{name} is the value of a label that pods have only with pods.launcher=training-operator"


def take_container(draft: Draft, container: Fields, resources: str = "resources") -> None:
    if image := container.take("image", str, ""):
        draft.set("image", image)
    draft.patch(main={"imagePullPolicy": container.take("imagePullPolicy", str, "")})
    container.drop_if("terminationMessagePath", "/dev/termination-log")
    container.drop_if("terminationMessagePolicy", "File")
    take_variables(draft, container)
    _take_resources(draft, container, resources)


def take_variables(draft: Draft, container: Fields) -> None:
    _take_environment(draft, container)
    _take_secrets(draft, container)


def take_identity(draft: Draft, *owners: Fields) -> None:
    """Take the user from the security contexts of a container and its pod, and drop what pods have anyway."""
    contexts = [owner.at("securityContext") for owner in owners]
    for context in contexts:
        user = context.get("runAsUser", int, 0)
        if user >= 1 and draft.settings.setdefault("user", user) == user:
            context.drop("runAsUser")
    for context in contexts:
        _drop_alike(context, draft.settings.get("user", Placement().user))


def _drop_alike(context: Fields, user: int) -> None:
    context.drop_if("runAsGroup", user)
    context.drop_if("fsGroup", user)
    context.drop_if("runAsNonRoot", True)
    context.drop_if("allowPrivilegeEscalation", False)
    context.drop_if("privileged", False)
    context.drop_if("seccompProfile", {"type": "RuntimeDefault"})
    context.drop_if("fsGroupChangePolicy", "OnRootMismatch")
    context.drop_if("capabilities", {"drop": ["ALL"]})


def _take_resources(draft: Draft, container: Fields, resources: str) -> None:
    may_lock_memory = _may_lock_memory(container)
    requests, limits = (dict(container.take(f"{resources}.{name}", dict, {})) for name in ("requests", "limits"))
    for name in ("cpu", "memory"):
        limit = str(limits.pop(name, ""))
        request = str(requests.pop(name, limit))
        draft.set(name, request)
        if limit and (name == "cpu" or limit != request):
            draft.patch(main=_limited(name, limit))
        if name == "memory" and request and not limit:
            draft.note(f"memory is also limited to {request}: set a limit of the container main in pods.pod for more")
    container.drop(f"{resources}.claims")  # the main container uses all claims of its pod
    for name, value in {**requests, **limits}.items():
        if (request := requests.get(name, value)) != value:
            draft.note(f"{name}: each pod requests its limit, {value}, not {request}")
        _take_device(draft, name, str(value), may_lock_memory)


def _limited(name: str, value: str) -> dict[str, Any]:
    return {"resources": {"limits": {name: value}}}


def _take_device(draft: Draft, name: str, value: str, may_lock_memory: bool) -> None:
    if is_gpu(name) and "gpus" not in draft.settings:
        draft.set("gpus", whole_amount(value))
        if name != "nvidia.com/gpu":
            draft.set("gpu_resource", name)
    elif may_lock_memory and is_rdma(name):
        draft.set("rdma", {name: whole_amount(value)})
    else:
        draft.patch(main=_limited(name, value))


def _may_lock_memory(container: Fields) -> bool:
    """Take the capability for RDMA, with which pods run as root."""
    added = container.get("securityContext.capabilities.add", list, [])
    devices = {**container.get("resources.requests", dict, {}), **container.get("resources.limits", dict, {})}
    if added != [LOCKS_MEMORY] or not any(map(is_rdma, devices)):
        return False
    container.drop("securityContext.capabilities")
    container.drop_if("securityContext.runAsUser", 0)
    return True


def _take_environment(draft: Draft, container: Fields) -> None:
    for variable in container.items("env"):
        name, value = str(variable.content.get("name", "")), variable.content.get("value", "")
        is_set = not draft.framework and SET_BY_LAUNCHER.fullmatch(name)
        if is_set or name == "NCCL_TIMEOUT" or is_secret(name, str(value)):
            continue
        if "valueFrom" in variable.content:
            _take_source(draft, name, variable.content["valueFrom"], container.name)
        else:
            if "$(" in str(value):
                draft.note(EXPANDED.format(name=name))
            draft.set("nccl" if NCCL_NAMES.fullmatch(name) else "env", {name: str(value)})
        variable.content.clear()


def _take_source(draft: Draft, name: str, source: Any, container: str) -> None:
    match source:
        case {"resourceFieldRef": {"containerName": owner, **rest}} if owner == container:
            draft.set("env", {name: {"resourceFieldRef": rest}})  # its own, which has another name in pods of a run
        case {"secretKeyRef": {"name": secret, "key": key, **rest}} if not rest:
            draft.set("secret_env", {name: f"{secret}/{key}"})
        case _:
            if OPERATOR_LABEL in str(source):
                draft.note(SET_BY_OPERATOR.format(name=name))
            draft.set("env", {name: source})


def _take_secrets(draft: Draft, container: Fields) -> None:
    for source in container.items("envFrom"):
        draft.patch(main={"envFrom": [source.take_all()]})
