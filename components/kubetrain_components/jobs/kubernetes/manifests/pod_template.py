"""The pod templates of jobs: pure functions of Placement and Replica.

Pods comply with the Pod Security level `restricted`, unless hostNetwork or RDMA needs more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kubetrain_components.jobs.annotations import APP_LABEL, LABEL_PREFIX, RUN_ID
from kubetrain_components.jobs.job import Job, Replica
from kubetrain_components.jobs.job_kinds import COMMAND_FRAMEWORKS
from kubetrain_components.jobs.kubernetes.manifests.claim_volumes import claim_mounts, claim_volumes
from kubetrain_components.jobs.kubernetes.manifests.code_container import (
    code_environment,
    code_fetchers,
    code_mounts,
    code_volumes,
)
from kubetrain_components.jobs.kubernetes.manifests.container_environment import container_environment
from kubetrain_components.jobs.kubernetes.manifests.container_ports import container_ports
from kubetrain_components.jobs.kubernetes.manifests.node_choice import (
    affinity,
    spot_labels,
    spot_tolerations,
    spread_constraints,
)
from kubetrain_components.jobs.kubernetes.manifests.shard_cache import cache_mounts, cache_sidecars, cache_volumes
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.manifest import Manifest, strings, without_empty

RESTRICTED: Manifest = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def pod_template(
    job: Job, replica: Replica, environment: Sequence[Manifest] = (), spec: Manifest | None = None
) -> Manifest:
    """Return the template of the pods of a role.

    Args:
        environment: Variables in the order in which they refer to each other.
        spec: More fields of the spec.
    """
    placement = placement_of(job, replica)
    return {
        "metadata": {
            "labels": {
                **_app_labels(job),
                **strings(placement.labels),
                **_istio(placement),
                **job.labels,
                LABEL_PREFIX + "role": replica.role.lower(),
            },
            "annotations": {**strings(placement.annotations), **_istio(placement), **job.identity.annotations()},
        },
        "spec": without_empty(
            {
                "initContainers": _secured(
                    [*code_fetchers(placement), *cache_sidecars(placement), *placement.init_containers]
                ),
                "containers": [_container(job, replica, environment), *_secured(placement.extra_containers)],
                "volumes": [
                    *claim_volumes(job),
                    *code_volumes(placement),
                    *cache_volumes(placement),
                    *placement.volumes,
                ],
                "resourceClaims": list(placement.resource_claims),
                "securityContext": _pod_security(placement),
                "serviceAccountName": placement.service_account,
                # Only pods with an explicit account may need access to the cluster, as that account says.
                **({} if placement.service_account else {"automountServiceAccountToken": False}),
                "enableServiceLinks": False,
                "imagePullSecrets": [{"name": name} for name in placement.image_pull_secrets],
                "nodeSelector": {**spot_labels(placement), **strings(placement.node_selector)},
                "affinity": affinity(job),
                "topologySpreadConstraints": spread_constraints(job),
                "tolerations": [*spot_tolerations(placement), *placement.tolerations],
                "schedulerName": placement.scheduler_name,
                "priorityClassName": placement.priority_class,
                "runtimeClassName": placement.runtime_class,
                "terminationGracePeriodSeconds": placement.grace_seconds,
                **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if placement.host_network else {}),
                **(spec or {}),
            }
        ),
    }


def _container(job: Job, replica: Replica, environment: Sequence[Manifest]) -> Manifest:
    placement = placement_of(job, replica)
    return without_empty(
        {
            "name": job.kind.traits.container,
            "image": placement.image,
            "imagePullPolicy": placement.image_pull_policy,
            "command": _command(job, replica),
            "ports": container_ports(job, replica),
            "env": [*container_environment(job, replica), *code_environment(placement, replica.env), *environment],
            "envFrom": [{"secretRef": {"name": name, "optional": True}} for name in placement.env_secrets],
            "resources": _resources(placement),
            "volumeMounts": [
                *claim_mounts(job),
                *code_mounts(placement),
                *cache_mounts(placement),
                *placement.volume_mounts,
            ],
            "securityContext": _container_security(placement),
            # Only the process itself writes its message; the tail of its log does not replace it.
            "terminationMessagePolicy": "File",
        }
    )


def _command(job: Job, replica: Replica) -> list[str]:
    """Return a command of the user's own as it is. In others, let the cluster replace no variable: settings may name
    secrets, and are recorded."""
    if job.trains_with in COMMAND_FRAMEWORKS:
        return list(replica.command)
    return [part.replace("$", "$$") for part in replica.command]


def placement_of(job: Job, replica: Replica) -> Placement:
    """Return the placement; without devices, and root for RDMA, in a pod that only starts processes in others."""
    if not (job.lead_decides and replica.role == job.lead_role):
        return job.placement
    return replace(job.placement, gpus=0, rdma=0, extra_resources={}, resource_claims=[])


def _resources(placement: Placement) -> Manifest:
    """Limit devices and memory to their requests, but CPUs only to an explicit limit."""
    devices = {placement.gpu_resource: placement.gpus, placement.rdma_resource: placement.rdma}
    exact = {name: str(count) for name, count in devices.items() if count} | strings(placement.extra_resources)
    claims = [{"name": claim["name"]} for claim in placement.resource_claims]
    return {
        **({"claims": claims} if claims else {}),
        "requests": without_empty({"cpu": placement.cpu, "memory": placement.memory, **exact}),
        "limits": without_empty(
            {"cpu": placement.cpu_limit, "memory": placement.memory_limit or placement.memory, **exact}
        ),
    }


def _pod_security(placement: Placement) -> Manifest:
    return {
        "runAsNonRoot": True,
        "runAsUser": placement.user,
        "runAsGroup": placement.user,
        "fsGroup": placement.user,
        # By default, each start sets mode and owner of every file, which takes long on a large volume.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _secured(containers: Iterable[Manifest]) -> list[Manifest]:
    """Let containers of the user comply with `restricted` unless they say otherwise."""
    return [{"securityContext": RESTRICTED, **each} for each in containers]


def _container_security(placement: Placement) -> Manifest:
    if not placement.rdma:
        return RESTRICTED
    # RDMA locks the memory that it uses. The capability for that has an effect only for root.
    return {**RESTRICTED, "runAsNonRoot": False, "runAsUser": 0, "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}


def _app_labels(job: Job) -> dict[str, str]:
    """Return the labels by which monitoring and other tools of the cluster find the pods of trainings."""
    if not job.is_training:
        return {}
    run = job.labels[RUN_ID]
    return {APP_LABEL + "name": "kubetrain", APP_LABEL + "component": "training", APP_LABEL + "instance": run}


def _istio(placement: Placement) -> dict[str, str]:
    """Disable the sidecar: current Istio reads this as a label, older versions as an annotation."""
    return {} if placement.istio else {"sidecar.istio.io/inject": "false"}
