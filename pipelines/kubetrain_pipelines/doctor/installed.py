"""What must be installed on a cluster: kinds, the training operator, Kubeflow Pipelines. Pure functions."""

import re
from collections.abc import Collection, Mapping
from typing import Any

import yaml

from kubetrain_components.jobs.job_kinds import TRAINING_API, TRAINING_KINDS
from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.doctor.deploy_files import deploy_folder
from kubetrain_pipelines.doctor.finding import Finding, missing, ok, skipped, warning

OPERATOR_VERSION = "1.9.4"
INSTALL_OPERATOR = (
    "kubectl apply --server-side -k "
    f"'github.com/kubeflow/trainer.git/manifests/overlays/standalone?ref=v{OPERATOR_VERSION}'"
)
KFP_VERSION = "2.17"
TEMPLATE_FOLDER, TEMPLATE_FILE = "/etc/config", "initContainer.yaml"
"""Where the operator looks for the template of its init container."""
VERSION = re.compile(r"v?(\d+)\.(\d+)")


def judge_kinds(wanted: str, kinds: Collection[str], groups: Collection[str]) -> Finding:
    """
    Args:
        wanted: What the run's job is: pytorchjobs or tfjobs.
        kinds: Those of kubeflow.org/v1.
    """
    needed = [kind.traits.plural for kind in TRAINING_KINDS]
    lacking = [plural for plural in needed if plural not in kinds]
    if not lacking:
        return ok(f"{' and '.join(needed)} of {TRAINING_API}")
    newer = "; its successor's trainjobs are there, which kubetrain does not use" if _has_successor(groups) else ""
    evidence = f"the cluster has no {' and no '.join(lacking)}{newer}"
    return missing(evidence, INSTALL_OPERATOR) if wanted in lacking else warning(evidence, INSTALL_OPERATOR)


def judge_operator(operator: Manifest | None) -> Finding:
    if operator is None:
        return missing(
            "there is no deployment of the training operator, so nobody would make the pods", INSTALL_OPERATOR
        )
    name, namespace = operator["metadata"]["name"], operator["metadata"]["namespace"]
    image = container_of(operator)["image"]
    if not (operator.get("status") or {}).get("availableReplicas"):
        return missing(
            f"the training operator {namespace}/{name} ({image}) does not run",
            f"kubectl -n {namespace} describe deployment {name}\nkubectl -n {namespace} logs deployment/{name}",
        )
    evidence = f"{image} runs in {namespace}{_gang_note(operator)}"
    version = VERSION.match(image.rpartition(":")[2])
    if version is None:
        return warning(f"{evidence}; its version cannot be told by its tag", "see that it is 1.9")
    if (int(version[1]), int(version[2])) < (1, 9):
        return warning(f"{evidence}, which kubetrain was never tried with", INSTALL_OPERATOR)
    return ok(evidence)


def container_of(operator: Manifest) -> Manifest:
    container: Manifest = operator["spec"]["template"]["spec"]["containers"][0]
    return container


def gang_scheduler(operator: Manifest) -> str:
    """Who starts all pods of a job or none, as the operator was told."""
    return _flag(operator, "gang-scheduler-name")


def template_claim(operator: Manifest) -> str:
    """The ConfigMap that is mounted where the operator looks for its template; empty: none is."""
    volumes = {each["name"]: each for each in operator["spec"]["template"]["spec"].get("volumes") or []}
    for mount in container_of(operator).get("volumeMounts") or []:
        if mount["mountPath"].rstrip("/") == TEMPLATE_FOLDER:
            return str((volumes.get(mount["name"], {}).get("configMap") or {}).get("name", ""))
    return ""


def judge_init_container(operator: Manifest, template: str | None, *, is_restricted: bool, is_needed: bool) -> Finding:
    """
    Args:
        template: What the operator is given for one; None: nothing.
        is_needed: Whether the run has Workers beside a Master.
    """
    if not is_needed:
        return ok("not needed: only Workers beside a Master get one")
    if (path := _flag(operator, "pytorch-init-container-template-file")) and not path.startswith(TEMPLATE_FOLDER):
        return warning(
            f"the operator reads its template at {path}, which was not looked at",
            f"see that it has the securityContext of {deploy_folder() / 'operator' / 'init_container.yaml'}",
        )
    if template is not None and passes_restricted(template):
        return ok("the operator's template passes Pod Security restricted")
    evidence = "the operator's init container has no security context"
    if not is_restricted:
        return ok(f"{evidence}, and this namespace asks for none")
    return missing(
        f"{evidence}, so that this namespace refuses Workers beside a Master",
        f"{supply_template(operator)}\nor do without a Master: --set min_workers=N, as many as workers (PyTorch)",
    )


def passes_restricted(template: str) -> bool:
    """What a container must say itself: that its user is not root, its pod does."""
    try:
        containers = yaml.safe_load(re.sub(r"\{\{.*?\}\}", "x", template))
        security = [each.get("securityContext") or {} for each in containers]
    except (yaml.YAMLError, AttributeError, TypeError):
        return False
    return bool(security) and all(
        each.get("allowPrivilegeEscalation") is False and "ALL" in ((each.get("capabilities") or {}).get("drop") or [])
        for each in security
    )


def supply_template(operator: Manifest) -> str:
    folder = deploy_folder() / "operator"
    name, namespace = operator["metadata"]["name"], operator["metadata"]["namespace"]
    mapped = template_claim(operator) or "pytorch-init-container"
    commands = [
        f"kubectl -n {namespace} create configmap {mapped} --from-file={TEMPLATE_FILE}={folder}/init_container.yaml"
        f" --dry-run=client -o yaml | kubectl -n {namespace} apply -f -"
    ]
    if template_claim(operator):  # which it reads once, when it starts
        commands.append(f"kubectl -n {namespace} rollout restart deployment {name}")
    else:
        commands.append(f"kubectl -n {namespace} patch deployment {name} --patch-file {folder}/deployment_patch.yaml")
    return "\n".join(commands)


def judge_kfp(answer: Mapping[str, Any] | None, source: str) -> Finding:
    """
    Args:
        answer: What its API says of itself; None: nobody was asked.
    """
    if answer is None:
        return skipped("not asked: no --endpoint, and no service ml-pipeline in kubeflow or this namespace")
    tag = str(answer.get("tag_name") or "unknown")
    users = "for several users" if answer.get("multi_user") else "for one team"
    evidence = f"version {tag}, {users}, at {source}"
    version, ours = VERSION.match(tag), VERSION.match(KFP_VERSION)
    if version is None:
        return warning(f"{evidence}: no version that can be compared", f"see that it is {KFP_VERSION} or newer")
    if ours is not None and tuple(map(int, version.groups())) < tuple(map(int, ours.groups())):
        return warning(f"{evidence}: the pipelines are compiled for {KFP_VERSION}", f"upgrade it to {KFP_VERSION}")
    return ok(evidence)


def judge_istio(labels: Mapping[str, str], *, is_wanted: bool) -> Finding:
    is_on = labels.get("istio-injection") == "enabled" or "istio.io/rev" in labels
    if not is_on:
        return ok("Istio does not inject its proxy here")
    if is_wanted:
        return warning("Istio injects its proxy, which never ends: jobs may hang after their work", "--set istio=false")
    return ok("Istio injects its proxy here, and jobs' pods decline it")


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


def _has_successor(groups: Collection[str]) -> bool:
    return "trainer.kubeflow.org" in groups
