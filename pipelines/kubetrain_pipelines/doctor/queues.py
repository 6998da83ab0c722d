"""Check the queue or gang scheduler of the jobs: Kueue, Volcano, scheduler-plugins. Pure functions."""

import contextlib
from collections.abc import Collection, Sequence

import yaml

from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.doctor.deploy_files import apply_command
from kubetrain_pipelines.doctor.finding import Finding, missing, ok, skipped, unknown, warning
from kubetrain_pipelines.doctor.installed import container_of, gang_scheduler
from kubetrain_pipelines.translate.pods import GANG_SCHEDULERS

KUEUE, VOLCANO, SCHEDULER_PLUGINS = "kueue.x-k8s.io", "scheduling.volcano.sh", "scheduling.x-k8s.io"
GANGS = {"volcano": VOLCANO, "scheduler-plugins": SCHEDULER_PLUGINS}
NAMES = {setting: name for name, setting in GANG_SCHEDULERS.items()}
"""The names of the schedulers, unless an installation has changed them."""
DEFAULT = "default"
KUEUE_SETTINGS = "/api/v1/namespaces/kueue-system/configmaps/kueue-manager-config"
KUEUE_CONFIGURATION = "controller_manager_config.yaml"
INSTALL = {
    "kueue": "install Kueue with the framework {framework} (kueue.sigs.k8s.io/docs/installation)",
    "volcano": "install Volcano (volcano.sh/docs/installation)",
    "scheduler-plugins": "install scheduler-plugins with its coscheduling (scheduler-plugins.sigs.k8s.io/docs)",
}


def framework_of(kind: JobKind) -> str:
    """Return the name of a kind of job in Kueue's configuration."""
    return f"{kind.traits.api_version.partition('/')[0]}/{kind.lower()}"


BATCH_JOB = framework_of(JobKind.BATCH_JOB)
"""Kueue manages it by default. The evaluation is one, and so is the transfer."""


def judge_gang(placement: Placement, groups: Collection[str], operator: Manifest | None) -> Finding:
    """Judge Volcano and scheduler-plugins, which the operator must be started with."""
    scheduler = placement.scheduler
    if GANGS[scheduler] not in groups:
        return missing(
            f"{scheduler} is not installed: the cluster has no API group {GANGS[scheduler]}", INSTALL[scheduler]
        )
    if operator is None:
        return unknown(f"the training operator is not deployed; it must be started with {scheduler}")
    configured = gang_scheduler(operator)
    if bool(configured) and (configured == "volcano") == (scheduler == "volcano"):
        return ok(f"{scheduler} is installed, and the operator was started with {configured}")
    return missing(
        f"the operator was started with {configured or 'no gang scheduler'}, not with {scheduler}, so the pods of a "
        "job do not start together",
        set_gang_scheduler(operator, scheduler),
    )


def set_gang_scheduler(operator: Manifest, scheduler: str) -> str:
    """Return a command that restarts the operator with this gang scheduler."""
    container, flag = container_of(operator), f"--gang-scheduler-name={NAMES[scheduler]}"
    place = "args" if container.get("args") or not container.get("command") else "command"
    words = _without_flag(container.get(place) or [])
    value = ", ".join(f'"{word}"' for word in [*words, flag])
    name, namespace = operator["metadata"]["name"], operator["metadata"]["namespace"]
    patch = f'[{{"op": "add", "path": "/spec/template/spec/containers/0/{place}", "value": [{value}]}}]'
    return f"kubectl -n {namespace} patch deployment {name} --type=json -p='{patch}'"


def _without_flag(words: Sequence[str]) -> list[str]:
    """Leave out the flag, whose value may be the next word."""
    before = ["", *words]
    kept = [word for word, last in zip(words, before, strict=False) if not last.endswith("-gang-scheduler-name")]
    return [word for word in kept if "gang-scheduler-name" not in word]


def judge_kueue(
    queue: str,
    namespace: str,
    found: Manifest | None,
    cluster_queues: Collection[str],
    version: str,
    settings: Manifest | None,
    framework: str,
) -> Finding:
    """
    Args:
        found: The LocalQueue of this name.
        version: The version of Kueue's API; empty if it is not installed.
        settings: The ConfigMap of Kueue's configuration; None if there is none, or your account may not read it.
        framework: The name that Kueue gives to the kind of the training job.
    """
    if not version:
        return missing(
            f"Kueue is not installed: the cluster has no API group {KUEUE}",
            INSTALL["kueue"].format(framework=framework),
        )
    if found is None:
        cluster_queue = next(iter(cluster_queues)) if len(cluster_queues) == 1 else "NAME-OF-A-CLUSTER-QUEUE"
        manifest = {
            "apiVersion": f"{KUEUE}/{version}",
            "kind": "LocalQueue",
            "metadata": {"name": queue, "namespace": namespace},
            "spec": {"clusterQueue": cluster_queue},
        }
        return missing(f"LocalQueue {queue} does not exist in {namespace}", apply_command([manifest], namespace))
    for condition in (found.get("status") or {}).get("conditions") or []:
        if condition["type"] == "Active" and condition["status"] != "True":
            return missing(
                f"LocalQueue {queue} is not active: {condition.get('message', '')}",
                f"kubectl describe clusterqueue {found['spec']['clusterQueue']}",
            )
    needed = list(dict.fromkeys((framework, BATCH_JOB)))
    managed = managed_frameworks(settings)
    if managed is None:
        return warning(
            f"LocalQueue {queue} is active, but your account cannot read which jobs Kueue manages",
            f"ask an administrator to check that integrations.frameworks includes {' and '.join(needed)}:\n"
            "kubectl -n kueue-system get configmap kueue-manager-config -o yaml",
        )
    if lacking := [name for name in needed if name not in managed]:
        return missing(
            f"Kueue does not manage {' and '.join(lacking)}: those jobs would never start",
            f"add {' and '.join(lacking)} to integrations.frameworks:\nkubectl -n kueue-system edit configmap "
            "kueue-manager-config\nkubectl -n kueue-system rollout restart deployment kueue-controller-manager",
        )
    return ok(f"LocalQueue {queue} is active, and Kueue manages {' and '.join(needed)}")


def judge_etcd_queue(default: Manifest | None) -> Finding:
    """
    Args:
        default: The LocalQueue of the name default in the namespace, into which Kueue puts jobs without a queue.
    """
    if default is None:
        return ok(f"no LocalQueue {DEFAULT} takes the Job of the etcd")
    return warning(
        f"Kueue puts the Job of the etcd into LocalQueue {DEFAULT}, as all jobs of this namespace that name no queue: "
        "it may suspend the etcd under a training that runs",
        f"use an etcd of yours (endpoint of pods.rendezvous), or a namespace without a LocalQueue {DEFAULT}",
    )


def managed_frameworks(settings: Manifest | None) -> list[str] | None:
    """Return the kinds of jobs that Kueue's configuration lists; None if that is unknown."""
    if settings is None:
        return None
    with contextlib.suppress(AttributeError, KeyError, TypeError, yaml.YAMLError):
        listed = (yaml.safe_load(settings["data"][KUEUE_CONFIGURATION]).get("integrations") or {}).get("frameworks")
        if listed is None or isinstance(listed, list):
            return [BATCH_JOB] if listed is None else listed
    return None


def judge_no_queue(operator: Manifest | None) -> Finding:
    if operator is not None and (configured := gang_scheduler(operator)):
        return warning(
            f"the operator was started with {configured}, so every training waits for it",
            f"--set pods.scheduler={GANG_SCHEDULERS.get(configured, configured)}, so that runs report why a job waits",
        )
    return skipped("not requested: --set pods.scheduler=…")
