"""Check what runs a training on a cluster: which launcher a run takes, what it lacks, and Trainer. Pure functions."""

from collections.abc import Collection, Mapping
from typing import Any

from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.launchers import LAUNCHERS, Launcher
from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.doctor.finding import Finding, missing, ok, warning
from kubetrain_pipelines.doctor.installed import INSTALL_OPERATOR, container_of, is_running

TRAINER_VERSION = "2.3.0"
INSTALL_TRAINER = (
    "kubectl apply --server-side -k "
    f"'https://github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v{TRAINER_VERSION}'"
)
INSTALL_RAY = "kubectl create -k 'https://github.com/ray-project/kuberay/ray-operator/config/default?ref=v1.5.0'"
INSTALL = {
    Launcher.TRAINING_OPERATOR: INSTALL_OPERATOR,
    Launcher.TRAINER: INSTALL_TRAINER,
    Launcher.JOB: "kubectl version",
    Launcher.RAY: INSTALL_RAY,
}
NOTES = {
    Launcher.TRAINING_OPERATOR: "Kubeflow has retired this operator, but it works",
    Launcher.TRAINER: "it has no volcano, scheduler-plugins or pods.scale_metrics, and pods.ttl_seconds only with the "
    "reaper",
    Launcher.JOB: "it has no volcano, scheduler-plugins or pods.scale_metrics",
    Launcher.RAY: "it needs Ray in pods.image, and has no pods.scheduler, pods.host_network or pods.min_workers",
}
JOB_SET = "jobset.x-k8s.io"
NEW_FIELD = "runtimePatches"
"""Field of a TrainJob since version 2.2."""


def taken(wanted: Launcher, served: Collection[Launcher]) -> Launcher:
    """Return the launcher of a new run, as far as it is known what the cluster has."""
    first = next((launcher for launcher in LAUNCHERS if launcher in served), Launcher.TRAINING_OPERATOR)
    return first if wanted is Launcher.AUTO else wanted


def judge_launcher(wanted: Launcher, served: Collection[Launcher], framework: str, refusal: str) -> Finding:
    """
    Args:
        served: The launchers whose kind of job the cluster has.
        refusal: The reason that this launcher cannot run the training with these settings; empty if it can.
    """
    launcher = taken(wanted, served)
    kind = launcher.kind(framework)
    if launcher not in served:
        others = ", ".join(item for item in LAUNCHERS if item in served)
        return missing(
            f"pods.launcher is {launcher}, but the cluster has no {kind}",
            f"{INSTALL[launcher]}\nor --set pods.launcher=auto, which takes the first of: {others}",
        )
    why = "as set" if wanted is not Launcher.AUTO else _why(launcher, framework)
    if refusal:
        return missing(
            f"{launcher} runs this training ({why}): {refusal}", f"{INSTALL_OPERATOR}\nor change the settings"
        )
    return ok(f"{launcher} runs this training ({why}); {NOTES[launcher]}")


def _why(launcher: Launcher, framework: str) -> str:
    lacking = [f"no {item.kind(framework)}" for item in LAUNCHERS[: LAUNCHERS.index(launcher)]]
    has = [] if launcher is Launcher.JOB else [str(launcher.kind(framework))]
    return f"the cluster has {' and '.join([*has, *lacking])}"


def judge_trainer(trainer: Manifest | None, fields: Collection[str] | None, groups: Collection[str]) -> Finding:
    """
    Args:
        trainer: The Deployment of Trainer; None if it was not found.
        fields: The fields of a TrainJob's spec; None if the cluster does not describe them.
    """
    if fields is not None and NEW_FIELD not in fields:
        return missing(
            f"Trainer is older than 2.2: its {JobKind.TRAIN_JOB} has no {NEW_FIELD}"
            + (", but podTemplateOverrides" if "podTemplateOverrides" in fields else ""),
            f"{INSTALL_TRAINER}\nor --set pods.launcher=job",
        )
    if JOB_SET not in groups:
        return missing(f"JobSet, which Trainer needs, is not installed: no API group {JOB_SET}", INSTALL_TRAINER)
    if trainer is None:
        return warning("the Deployment of Trainer was not found", "kubectl get deployments --all-namespaces")
    name, namespace, image = (
        trainer["metadata"]["name"],
        trainer["metadata"]["namespace"],
        container_of(trainer)["image"],
    )
    if not is_running(trainer):
        return missing(
            f"Trainer {namespace}/{name} ({image}) is not running",
            f"kubectl -n {namespace} describe deployment {name}\nkubectl -n {namespace} logs deployment/{name}",
        )
    if fields is None:
        return warning(f"{image} is running in {namespace}; its version is unknown", "check that it is 2.2 or later")
    return ok(f"{image} is running in {namespace}, version 2.2 or later")


def spec_fields(description: Mapping[str, Any] | None, kind: str) -> frozenset[str] | None:
    """Return the fields of a kind's spec in an OpenAPI description of its API group; None if it has none."""
    for schema in ((description or {}).get("components") or {}).get("schemas", {}).values():
        if any(item.get("kind") == kind for item in schema.get("x-kubernetes-group-version-kind") or []):
            return frozenset(((schema.get("properties") or {}).get("spec") or {}).get("properties") or ()) or None
    return None
