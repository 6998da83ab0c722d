"""Whether those who start a job's pods together are there: Kueue, Volcano, scheduler-plugins. Pure functions."""

from collections.abc import Collection

from kubetrain_components.jobs.placement import Placement
from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.doctor.deploy_files import apply_command
from kubetrain_pipelines.doctor.finding import Finding, missing, ok, skipped, unknown, warning
from kubetrain_pipelines.doctor.installed import container_of, gang_scheduler

KUEUE, VOLCANO, SCHEDULER_PLUGINS = "kueue.x-k8s.io", "scheduling.volcano.sh", "scheduling.x-k8s.io"
GANGS = {"volcano": VOLCANO, "scheduler-plugins": SCHEDULER_PLUGINS}
KUEUE_SETTINGS = "/api/v1/namespaces/kueue-system/configmaps/kueue-manager-config"
INSTALL = {
    "kueue": "install Kueue with the framework kubeflow.org/pytorchjob (kueue.sigs.k8s.io/docs/installation)",
    "volcano": "install Volcano (volcano.sh/docs/installation)",
    "scheduler-plugins": "install scheduler-plugins with its coscheduling (scheduler-plugins.sigs.k8s.io/docs)",
}


def judge_gang(placement: Placement, groups: Collection[str], operator: Manifest | None) -> Finding:
    """Volcano and scheduler-plugins, which the operator must have been started with."""
    scheduler = placement.scheduler
    if GANGS[scheduler] not in groups:
        return missing(
            f"the cluster has no kinds of {GANGS[scheduler]}: {scheduler} is not installed", INSTALL[scheduler]
        )
    if operator is None:
        return unknown("there is no training operator, which must be started with it")
    told = gang_scheduler(operator)
    if bool(told) and (told == "volcano") == (scheduler == "volcano"):
        return ok(f"{scheduler} is installed, and the operator was started with {told}")
    was = f"with {told}" if told else "without one"
    return missing(
        f"the operator was started {was}, so that nobody starts its pods together", tell_operator(operator, scheduler)
    )


def tell_operator(operator: Manifest, scheduler: str) -> str:
    """A command that starts the operator with this gang scheduler."""
    container, flag = container_of(operator), f"--gang-scheduler-name={scheduler}"
    place = "args" if container.get("args") or not container.get("command") else "command"
    words = [each for each in container.get(place) or [] if "gang-scheduler-name" not in each]
    value = ", ".join(f'"{word}"' for word in [*words, flag])
    name, namespace = operator["metadata"]["name"], operator["metadata"]["namespace"]
    patch = f'[{{"op": "add", "path": "/spec/template/spec/containers/0/{place}", "value": [{value}]}}]'
    return f"kubectl -n {namespace} patch deployment {name} --type=json -p='{patch}'"


def judge_kueue(
    queue: str,
    namespace: str,
    found: Manifest | None,
    cluster_queues: Collection[str],
    version: str,
    settings: str | None,
    framework: str,
) -> Finding:
    """
    Args:
        found: The LocalQueue of this name.
        version: In which Kueue's kinds are served; empty: it is not installed.
        settings: Kueue's own; None: we may not read them.
        framework: pytorchjob or tfjob.
    """
    if not version:
        return missing(f"the cluster has no kinds of {KUEUE}: Kueue is not installed", INSTALL["kueue"])
    if found is None:
        behind = next(iter(cluster_queues)) if len(cluster_queues) == 1 else "NAME-OF-A-CLUSTER-QUEUE"
        manifest = {
            "apiVersion": f"{KUEUE}/{version}",
            "kind": "LocalQueue",
            "metadata": {"name": queue, "namespace": namespace},
            "spec": {"clusterQueue": behind},
        }
        return missing(f"there is no LocalQueue {queue} in {namespace}", apply_command([manifest], namespace))
    for condition in (found.get("status") or {}).get("conditions") or []:
        if condition["type"] == "Active" and condition["status"] != "True":
            return missing(
                f"the LocalQueue {queue} admits nothing: {condition.get('message', '')}",
                f"kubectl describe clusterqueue {found['spec']['clusterQueue']}",
            )
    if settings is None:
        return warning(
            f"the LocalQueue {queue} is active; whether Kueue manages {framework}s we may not read",
            f"have somebody see that kubeflow.org/{framework} is among the integrations.frameworks of\n"
            "kubectl -n kueue-system get configmap kueue-manager-config -o yaml",
        )
    if f"kubeflow.org/{framework}" not in settings:
        return missing(
            f"Kueue does not manage {framework}s, which would wait for ever",
            f"add kubeflow.org/{framework} to integrations.frameworks:\n"
            "kubectl -n kueue-system edit configmap kueue-manager-config\n"
            "kubectl -n kueue-system rollout restart deployment kueue-controller-manager",
        )
    return ok(f"the LocalQueue {queue} is active, and Kueue manages {framework}s")


def judge_no_queue(operator: Manifest | None) -> Finding:
    if operator is not None and (told := gang_scheduler(operator)):
        return warning(
            f"every training waits for {told}, which the operator was started with",
            f"say so, and it shows where a job waits: --set scheduler={told}",
        )
    return skipped("not asked: --set scheduler names none")
