"""The pod templates of jobs: pure functions of Placement and Replica.

Pods comply with the Pod Security level `restricted`, unless hostNetwork or RDMA needs more.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kubetrain_components.jobs.annotations import APP_LABEL, LABEL_PREFIX, RUN_ID
from kubetrain_components.jobs.job import Job, Replica
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import COMMAND_FRAMEWORKS, JobKind
from kubetrain_components.jobs.kubernetes.manifests.node_choice import (
    affinity,
    spot_labels,
    spot_tolerations,
    spread_constraints,
)
from kubetrain_components.jobs.kubernetes.manifests.volumes import (
    ANY_IMAGE,
    brings_trainer,
    claim_mounts,
    claim_volumes,
    code_environment,
    with_brought_trainer,
)
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.pod_patch import MAIN, merge, without_devices
from kubetrain_components.jobs.quantity import whole_amount
from kubetrain_components.manifest import Manifest, strings, without_empty
from kubetrain_trainer.output import grace_period
from kubetrain_trainer.processes.resources import NODE_VARIABLE

RENDEZVOUS_PORT = 23456
"""The operator's default."""
HOST_PORTS = range(20_000, 30_000)
"""Below the ports that Kubernetes assigns to services and the kernel to connections."""
METRICS_PORT_NAME = "metrics"

NCCL_PRESETS = {
    "": {},
    "ethernet": {"NCCL_DEBUG": "WARN", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "eth0"},
    "infiniband": {
        "NCCL_DEBUG": "WARN",
        "NCCL_IB_DISABLE": "0",
        "NCCL_NET": "IB",  # otherwise NCCL falls back to TCP without a word
        "NCCL_NET_GDR_LEVEL": "PHB",
        "NCCL_IB_QPS_PER_CONNECTION": "4",
        "NCCL_MIN_NCHANNELS": "8",
    },
}
HOST_INTERFACES = "^lo,docker,cni,veth,cali,flannel"
"""Interface names of nodes vary, so this excludes those that do not reach other nodes."""
NODE_OF_POD: Manifest = {"fieldRef": {"fieldPath": "spec.nodeName"}}
"""The trainers name the node of a slow process."""

NO_ISTIO = {"sidecar.istio.io/inject": "false"}
"""Disables the sidecar, which keeps pods from completing: current Istio reads a label, older versions an annotation."""

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
    labels = {**job.labels, LABEL_PREFIX + "role": replica.role.lower()}
    base = {
        "metadata": {"labels": {**_app_labels(job), **NO_ISTIO}, "annotations": dict(NO_ISTIO)},
        "spec": without_empty(
            {
                "containers": [_container(job, replica, environment)],
                "volumes": claim_volumes(job),
                "securityContext": _pod_security(placement),
                **({} if placement.spec.get("serviceAccountName") else {"automountServiceAccountToken": False}),
                "enableServiceLinks": False,
                "nodeSelector": spot_labels(placement),
                "tolerations": spot_tolerations(placement),
                "terminationGracePeriodSeconds": placement.grace_seconds,
                **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if placement.host_network else {}),
                **(spec or {}),
            }
        ),
    }
    own = {"metadata": {"labels": labels, "annotations": job.identity.annotations()}}
    return _completed(merge(merge(base, _patch(job, placement)), own))


def _patch(job: Job, placement: Placement) -> Manifest:
    """Return the user's patch, with what the job adds to its affinity, for the container as it is called in the job."""
    given = {name: _renamed(items, job) if name == "containers" else items for name, items in placement.spec.items()}
    nodes = {"affinity": affinity(job), "topologySpreadConstraints": spread_constraints(job)}
    return {**placement.pod, "spec": {**given, **without_empty(nodes)}}


def _renamed(containers: Sequence[Manifest], job: Job) -> list[Manifest]:
    name = job.kind.traits.container
    return [{**container, "name": name} if container["name"] == MAIN else container for container in containers]


def _completed(template: Manifest) -> Manifest:
    """Let each container comply with `restricted` unless it says otherwise, the first one use all claims of its pod,
    and turn numbers into the texts that Kubernetes accepts."""
    metadata, spec = template["metadata"], template["spec"]
    first, *others = [_secured(container) for container in spec["containers"]]
    if claims := [{"name": claim["name"]} for claim in spec.get("resourceClaims") or []]:
        first = merge({"resources": {"claims": claims}}, first)
    resources = first["resources"]
    first |= {"resources": {**resources, **{kind: strings(resources[kind]) for kind in ("requests", "limits")}}}
    texts = {"nodeSelector": strings(spec["nodeSelector"])} if spec.get("nodeSelector") else {}
    inits = [_secured(container) for container in spec.get("initContainers") or []]
    containers = {"containers": [first, *others], **({"initContainers": inits} if inits else {})}
    return {
        "metadata": {name: strings(metadata[name]) for name in ("labels", "annotations")},
        "spec": {**spec, **texts, **containers},
    }


def _container(job: Job, replica: Replica, environment: Sequence[Manifest]) -> Manifest:
    placement = placement_of(job, replica)
    return without_empty(
        {
            "name": job.kind.traits.container,
            "image": placement.image,
            "imagePullPolicy": "IfNotPresent",
            "command": _command(job, replica),
            "ports": container_ports(job, replica),
            "env": [*container_environment(job, replica), *code_environment(placement, replica.env), *environment],
            "resources": _resources(placement),
            "volumeMounts": claim_mounts(job),
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
    command = with_brought_trainer(replica.command) if brings_trainer(job.placement) else replica.command
    return [part.replace("$", "$$") for part in command]


def placement_of(job: Job, replica: Replica) -> Placement:
    """Return the placement; without devices, and root for RDMA, in a pod that only starts processes in others."""
    if not job.lead_decides or replica.role == "Worker":
        return job.placement
    limits = {name: value for name, value in job.placement.limits.items() if name in ("cpu", "memory")}
    return replace(job.placement, gpus=0, rdma={}, pod=without_devices(job.placement.pod, limits))


def _resources(placement: Placement) -> Manifest:
    """Limit devices and memory to their requests, but CPUs only to an explicit limit."""
    gpus = {placement.gpu_resource: placement.gpus} if placement.gpus else {}
    exact = strings({**gpus, **placement.rdma, **placement.devices})
    return {
        "requests": without_empty({"cpu": placement.cpu, "memory": placement.memory, **exact}),
        "limits": without_empty({"memory": placement.memory, **exact}),
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


def _secured(container: Manifest) -> Manifest:
    return {"securityContext": RESTRICTED, **container}


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


def container_environment(job: Job, replica: Replica) -> list[Manifest]:
    """Return the variables: the placement's settings override presets, and the job's own variables override both."""
    placement = job.placement
    values = {**_threads(job), **NCCL_PRESETS[placement.network], **(ANY_IMAGE if brings_trainer(placement) else {})}
    values |= {grace_period.VARIABLE: str(placement.grace_seconds)} if job.is_training else {}
    if placement.host_network and "NCCL_SOCKET_IFNAME" in values:
        values["NCCL_SOCKET_IFNAME"] = HOST_INTERFACES
    values |= {**strings(placement.nccl), **strings(placement.env), **replica.env}
    sources = {name: source for name, source in placement.env.items() if isinstance(source, Mapping)}
    if job.is_training and NODE_VARIABLE not in values:
        sources.setdefault(NODE_VARIABLE, NODE_OF_POD)
    for name, source in placement.secret_env.items():
        secret, key = source.split("/", 1)
        sources[name] = {"secretKeyRef": {"name": secret, "key": key}}
    return [
        *({"name": name, "value": values[name]} for name in sorted(values.keys() - sources.keys())),
        *({"name": name, "valueFrom": sources[name]} for name in sorted(sources)),
    ]


def _threads(job: Job) -> dict[str, str]:
    """Use one thread per CPU of the pod. By default a process uses all CPUs of its node and slows down other pods.

    Pods with GPUs keep the default: their CPUs only load data.
    """
    if job.placement.has_gpus:
        return {}
    quantity = str(job.placement.limits.get("cpu", job.placement.cpu))
    cpus = whole_amount(quantity) if quantity else 1
    return {"OMP_NUM_THREADS": str(max(1, cpus // job.processes_per_replica))}


def container_ports(job: Job, replica: Replica) -> list[Manifest]:
    ports = {**_rendezvous_ports(job, replica), **_metrics_ports(job, replica)}
    return [{"name": name, "containerPort": port} for name, port in ports.items()]


def _rendezvous_ports(job: Job, replica: Replica) -> dict[str, int]:
    """Declare the port on a node's network, so that the scheduler puts pods with the same port on different nodes."""
    if not job.placement.host_network or not job.is_training:
        return {}
    return {job.kind.traits.port_name: rendezvous_port(job, replica.role)}


def _metrics_ports(job: Job, replica: Replica) -> dict[str, int]:
    """Declare the port in the role that rank 0 has, where monitoring finds it by its name."""
    role = "Worker" if job.kind is JobKind.RAY_JOB else job.lead_role
    return {METRICS_PORT_NAME: job.metrics_port} if job.metrics_port and replica.role == role else {}


def rendezvous_port(job: Job, role: str) -> int:
    if not job.placement.host_network:
        return RENDEZVOUS_PORT
    return host_port(job.identity, "" if role == job.lead_role else role)


def host_port(identity: JobIdentity, role: str = "") -> int:
    """Return a port that other jobs and roles are unlikely to have, and that a restarted launcher finds again."""
    digest = hashlib.sha256(f"{identity.name}{role}".encode()).hexdigest()
    return HOST_PORTS[int(digest, 16) % len(HOST_PORTS)]
