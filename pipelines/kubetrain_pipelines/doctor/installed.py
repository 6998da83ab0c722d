"""Check what is installed on a cluster: the training operator, Kubeflow Pipelines, Istio. Pure functions."""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from kubetrain_components.jobs.kubernetes.manifests.pod_template import NO_ISTIO
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.manifest import Manifest
from kubetrain_components.run.parameters import RunParameters
from kubetrain_pipelines.doctor.deploy_files import deploy_folder
from kubetrain_pipelines.doctor.finding import Finding, missing, ok, skipped, warning
from kubetrain_pipelines.kubeflow.server_version import release_of

OPERATOR_VERSION = "1.9.4"
INSTALL_OPERATOR = (
    "kubectl apply --server-side -k "
    f"'github.com/kubeflow/trainer.git/manifests/overlays/standalone?ref=v{OPERATOR_VERSION}'"
)
SIDECARS = (1, 29)
"""The first version of Kubernetes that runs init containers as sidecars unless that is switched off."""
CACHE = ("data.delivery=cache", "sync the shards to a volume: --set data.delivery=volume")
OUTPUT = ("storage.output", "leave it out: then pods write to a PVC")
"""The settings that need them, and what to set instead."""
KFP_VERSION = (2, 17)
OLDER_KFP = (
    "schedules cannot have a --service-account, a launcher that is lost with its node is not started again, and logs "
    "need the endpoint of the UI or KUBECONFIG"
)
TEMPLATE_FOLDER, TEMPLATE_FILE = "/etc/config", "initContainer.yaml"
"""The mounted file in which the operator looks for the template of its init container."""


def judge_operator(operator: Manifest | None) -> Finding:
    if operator is None:
        return missing(
            "the training operator, which creates the pods, is not deployed",
            f"{INSTALL_OPERATOR}\nor --set pods.launcher=job, which needs no operator",
        )
    name, namespace = operator["metadata"]["name"], operator["metadata"]["namespace"]
    image = container_of(operator)["image"]
    if not is_running(operator):
        return missing(
            f"the training operator {namespace}/{name} ({image}) is not running",
            f"kubectl -n {namespace} describe deployment {name}\nkubectl -n {namespace} logs deployment/{name}",
        )
    evidence = f"{image} is running in {namespace}{_gang_note(operator)}"
    version = release_of(image.rpartition(":")[2])
    if version is None:
        return warning(f"{evidence}; its tag does not contain its version", "check that it is 1.9")
    if version < (1, 9):
        return warning(f"{evidence}, a version that kubetrain is not tested with", INSTALL_OPERATOR)
    return ok(evidence)


def is_running(deployment: Manifest) -> bool:
    return bool((deployment.get("status") or {}).get("availableReplicas"))


def container_of(operator: Manifest) -> Manifest:
    container: Manifest = operator["spec"]["template"]["spec"]["containers"][0]
    return container


def gang_scheduler(operator: Manifest) -> str:
    """Return the gang scheduler that the operator was started with, or an empty string."""
    return _flag(operator, "gang-scheduler-name")


def template_config_map(operator: Manifest) -> str:
    """Return the name of the ConfigMap that is mounted for the template, or an empty string."""
    volumes = {volume["name"]: volume for volume in operator["spec"]["template"]["spec"].get("volumes") or []}
    for mount in container_of(operator).get("volumeMounts") or []:
        if mount["mountPath"].rstrip("/") == TEMPLATE_FOLDER:
            return str((volumes.get(mount["name"], {}).get("configMap") or {}).get("name", ""))
    return ""


def judge_init_container(operator: Manifest, template: str | None, *, is_restricted: bool, is_needed: bool) -> Finding:
    """
    Args:
        template: The operator's template of an init container; None if it has none.
        is_needed: True if the run has Workers and a Master.
    """
    if not is_needed:
        return ok("not needed: the operator adds one only to Workers of a job with a Master")
    if (path := _flag(operator, "pytorch-init-container-template-file")) and not path.startswith(TEMPLATE_FOLDER):
        return warning(
            f"the operator reads its template from {path}, which was not checked",
            f"check that it has the securityContext of {deploy_folder() / 'operator' / 'init_container.yaml'}",
        )
    if template is not None and passes_restricted(template):
        return ok("the operator's template passes Pod Security restricted")
    evidence = "the operator's init container has no security context"
    if not is_restricted:
        return ok(f"{evidence}, and this namespace does not require one")
    return missing(
        f"{evidence}, so this namespace refuses the Workers of a job with a Master",
        f"{install_template(operator)}\n"
        "or run without a Master (PyTorch): --set pods.min_workers=N, as many as workers",
    )


def passes_restricted(template: str) -> bool:
    """Return True if the containers set what Pod Security restricted requires. The pod sets runAsNonRoot."""
    try:
        containers = yaml.safe_load(re.sub(r"\{\{.*?\}\}", "x", template))
        security = [container.get("securityContext") or {} for container in containers]
    except (yaml.YAMLError, AttributeError, TypeError):
        return False
    return bool(security) and all(
        item.get("allowPrivilegeEscalation") is False and "ALL" in ((item.get("capabilities") or {}).get("drop") or [])
        for item in security
    )


def install_template(operator: Manifest) -> str:
    """Return the commands that give the operator the template in deploy/operator."""
    folder = deploy_folder() / "operator"
    name, namespace = operator["metadata"]["name"], operator["metadata"]["namespace"]
    config_map = template_config_map(operator) or "pytorch-init-container"
    commands = [
        f"kubectl -n {namespace} create configmap {config_map} --from-file={TEMPLATE_FILE}={folder}/init_container.yaml"
        f" --dry-run=client -o yaml | kubectl -n {namespace} apply -f -"
    ]
    if template_config_map(operator):  # it is read only at startup
        commands.append(f"kubectl -n {namespace} rollout restart deployment {name}")
    else:
        commands.append(f"kubectl -n {namespace} patch deployment {name} --patch-file {folder}/deployment_patch.yaml")
    return "\n".join(commands)


def judge_kfp(answer: Mapping[str, Any] | None, source: str) -> Finding:
    """
    Args:
        answer: The answer of its health endpoint; None if it was not found.
    """
    if answer is None:
        return skipped("not found: no --endpoint, and no service ml-pipeline in kubeflow or this namespace")
    tag = str(answer.get("tag_name") or "unknown")
    users = "multi-user" if answer.get("multi_user") else "single-user"
    evidence = f"version {tag}, {users}, at {source}"
    version, wanted = release_of(tag), ".".join(map(str, KFP_VERSION))
    if version is None:
        return warning(f"{evidence}: the version cannot be compared", f"check that it is {wanted} or newer")
    if version < KFP_VERSION:
        return warning(f"{evidence}: works, but {OLDER_KFP}", f"upgrade to {wanted}")
    return ok(evidence)


def wants_istio(placement: Placement) -> bool:
    """Return True if the patch of the pods overrides our label against Istio's sidecar."""
    return any(str(placement.labels.get(name)).lower() == "true" for name in NO_ISTIO)


def judge_istio(labels: Mapping[str, str], *, is_wanted: bool) -> Finding:
    is_on = labels.get("istio-injection") == "enabled" or "istio.io/rev" in labels
    if not is_on:
        return ok("Istio does not inject sidecars in this namespace")
    if is_wanted:
        return warning(
            "Istio injects a sidecar that never ends, so jobs may not complete",
            "leave out sidecar.istio.io/inject in the labels of pods.pod",
        )
    return ok("Istio injects sidecars in this namespace, and the pods of jobs opt out")


def _gang_note(operator: Manifest) -> str:
    return f", with the gang scheduler {gang_scheduler(operator)}" if gang_scheduler(operator) else ""


def _flag(operator: Manifest, name: str) -> str:
    container = container_of(operator)
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    for index, word in enumerate(words):
        flag, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-") and flag == name:
            return value if equals else " ".join(words[index + 1 : index + 2])
    return ""


def judge_kubernetes(release: str, run: RunParameters) -> Finding:
    needing = {CACHE: run.train_config.uses_cache, OUTPUT: bool(run.storage.output)}
    version, (setting, instead) = release_of(release), next((each for each in needing if needing[each]), ("", ""))
    if setting and version and version < SIDECARS:
        return missing(
            f"Kubernetes {release} has no sidecars, which {setting} needs", f"update it to 1.29 or later, or {instead}"
        )
    return ok(f"Kubernetes {release}")
