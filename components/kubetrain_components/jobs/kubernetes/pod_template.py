"""The pod templates of jobs: pure functions of Placement and Replica.

Pods comply with the Pod Security level `restricted`, unless hostNetwork or RDMA needs more.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kubetrain_components.jobs.annotations import APP_LABEL, LABEL_PREFIX, RUN_ID, STAGE
from kubetrain_components.jobs.job import ClaimMount, Job, Replica
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import COMMAND_FRAMEWORKS
from kubetrain_components.jobs.kubernetes.code_container import (
    code_environment,
    code_fetchers,
    code_mounts,
    code_volumes,
)
from kubetrain_components.jobs.kubernetes.shard_cache import cache_mounts, cache_sidecars, cache_volumes
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.quantity import whole_amount
from kubetrain_components.jobs.shapes import REQUIRED
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.node_name import VARIABLE as NODE_VARIABLE

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
SPOT: dict[str, tuple[dict[str, str], str]] = {
    "gke": ({"cloud.google.com/gke-spot": "true"}, "cloud.google.com/gke-spot"),
    "eks": ({"eks.amazonaws.com/capacityType": "SPOT"}, ""),
    "aks": ({"kubernetes.azure.com/scalesetpriority": "spot"}, "kubernetes.azure.com/scalesetpriority"),
    "karpenter": ({"karpenter.sh/capacity-type": "spot"}, ""),
}
"""The labels of each platform's spot nodes, and the key of their taint, if they have one."""
NODE_OF_POD: Manifest = {"fieldRef": {"fieldPath": "spec.nodeName"}}
"""The trainers name the node of a slow process."""
RENDEZVOUS_PORT = 23456
"""The operator's default."""
HOST_PORTS = range(20_000, 30_000)
"""Below the ports that Kubernetes assigns to services and the kernel to connections."""
ZONE = "topology.kubernetes.io/zone"
ANY_NODE = "kubernetes.io/os"
"""A label with one value on all nodes that run these pods."""
KUEUE_LABEL = "kueue.x-k8s.io/queue-name"
SHARED_MEMORY = "shared-memory"
METRICS_PORT_NAME = "metrics"
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
                **_strings(placement.labels),
                **_istio(placement),
                **job.labels,
                LABEL_PREFIX + "role": replica.role.lower(),
            },
            "annotations": {**_strings(placement.annotations), **_istio(placement), **job.identity.annotations()},
        },
        "spec": without_empty(
            {
                "initContainers": _secured(
                    [*code_fetchers(placement), *cache_sidecars(placement), *placement.init_containers]
                ),
                "containers": [_container(job, replica, environment), *_secured(placement.extra_containers)],
                "volumes": [
                    *_volumes(job),
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
                "nodeSelector": {**_spot_labels(placement), **_strings(placement.node_selector)},
                "affinity": _affinity(job),
                "topologySpreadConstraints": [
                    {"labelSelector": _own_pods(job), **each} for each in placement.topology_spread
                ],
                "tolerations": [*_spot_tolerations(placement), *placement.tolerations],
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
            "ports": _ports(job, replica),
            "env": [*_environment(job, replica), *code_environment(placement), *environment],
            "envFrom": [{"secretRef": {"name": name, "optional": True}} for name in placement.env_secrets],
            "resources": _resources(placement),
            "volumeMounts": [
                *_mounts(job),
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


def _ports(job: Job, replica: Replica) -> list[Manifest]:
    ports = {**_rendezvous_ports(job, replica), **_metrics_ports(job, replica)}
    return [{"name": name, "containerPort": port} for name, port in ports.items()]


def _rendezvous_ports(job: Job, replica: Replica) -> dict[str, int]:
    """Declare the port on a node's network, so that the scheduler puts pods with the same port on different nodes."""
    if not job.placement.host_network or not job.is_training:
        return {}
    return {job.kind.traits.port_name: rendezvous_port(job, replica.role)}


def _metrics_ports(job: Job, replica: Replica) -> dict[str, int]:
    """Declare the port in the role that the chief has, where monitoring finds it by its name."""
    return {METRICS_PORT_NAME: job.metrics_port} if job.metrics_port and replica.role == job.lead_role else {}


def rendezvous_port(job: Job, role: str) -> int:
    if not job.placement.host_network:
        return RENDEZVOUS_PORT
    return host_port(job.identity, "" if role == job.lead_role else role)


def host_port(identity: JobIdentity, role: str = "") -> int:
    """Return a port that other jobs and roles are unlikely to have, and that a restarted launcher finds again."""
    digest = hashlib.sha256(f"{identity.name}{role}".encode()).hexdigest()
    return HOST_PORTS[int(digest, 16) % len(HOST_PORTS)]


def _environment(job: Job, replica: Replica) -> list[Manifest]:
    """Return the variables: the placement's settings override presets, and the job's own variables override both."""
    placement = job.placement
    values = {**_threads(job), **NCCL_PRESETS[placement.network]}
    if placement.host_network and "NCCL_SOCKET_IFNAME" in values:
        values["NCCL_SOCKET_IFNAME"] = HOST_INTERFACES
    values |= {**_strings(placement.nccl), **_strings(placement.env), **replica.env}
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
    quantity = job.placement.cpu_limit or job.placement.cpu
    cpus = whole_amount(quantity) if quantity else 1
    return {"OMP_NUM_THREADS": str(max(1, cpus // job.processes_per_replica))}


def placement_of(job: Job, replica: Replica) -> Placement:
    """Return the placement; without devices, and root for RDMA, in a pod that only starts processes in others."""
    if not (job.lead_decides and replica.role == job.lead_role):
        return job.placement
    return replace(job.placement, gpus=0, rdma=0, extra_resources={}, resource_claims=[])


def _resources(placement: Placement) -> Manifest:
    """Limit devices and memory to their requests, but CPUs only to an explicit limit."""
    devices = {placement.gpu_resource: placement.gpus, placement.rdma_resource: placement.rdma}
    exact = {name: str(count) for name, count in devices.items() if count} | _strings(placement.extra_resources)
    claims = [{"name": claim["name"]} for claim in placement.resource_claims]
    return {
        **({"claims": claims} if claims else {}),
        "requests": without_empty({"cpu": placement.cpu, "memory": placement.memory, **exact}),
        "limits": without_empty(
            {"cpu": placement.cpu_limit, "memory": placement.memory_limit or placement.memory, **exact}
        ),
    }


def _volumes(job: Job) -> list[Manifest]:
    """Make a PVC read-only if all its mounts are: access modes do not prevent writing."""
    volumes: dict[str, Manifest] = {}
    for claim in {mount.claim: None for mount in job.mounts}:
        read_only = all(mount.read_only for mount in job.mounts if mount.claim == claim)
        source = {"claimName": claim, **({"readOnly": True} if read_only else {})}
        volumes[claim] = {"name": _volume_name(job, claim), "persistentVolumeClaim": source}
    if job.placement.shm_size:
        shared = {"medium": "Memory", "sizeLimit": job.placement.shm_size}
        return [*volumes.values(), {"name": SHARED_MEMORY, "emptyDir": shared}]
    return list(volumes.values())


def _mounts(job: Job) -> list[Manifest]:
    mounts = [_mount(job, mount) for mount in job.mounts]
    if job.placement.shm_size:
        mounts.append({"name": SHARED_MEMORY, "mountPath": "/dev/shm"})  # noqa: S108 - the pod's own
    return mounts


def _mount(job: Job, mount: ClaimMount) -> Manifest:
    mounted = {"name": _volume_name(job, mount.claim), "mountPath": mount.path}
    if mount.sub_path:
        mounted["subPath"] = mount.sub_path
    return {**mounted, "readOnly": True} if mount.read_only else mounted


def _volume_name(job: Job, claim: str) -> str:
    """Number the PVCs: the name of a PVC may be too long for a volume."""
    return f"claim-{list(dict.fromkeys(mount.claim for mount in job.mounts)).index(claim)}"


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


def _affinity(job: Job) -> Manifest:
    given = job.placement.affinity
    parts = {"nodeAffinity": _node_affinity(job, given), "podAffinity": _pod_affinity(job, given)}
    return {**given, **without_empty(parts)}


def _node_affinity(job: Job, given: Manifest) -> Manifest:
    """Return the user's node affinity without the nodes to avoid: a node must match one of the terms as a whole."""
    nodes = given.get("nodeAffinity") or {}
    if not job.avoided_nodes:
        return nodes
    others = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in job.avoided_nodes]
    terms = (nodes.get(REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    elsewhere = [{**term, "matchFields": [*(term.get("matchFields") or []), *others]} for term in terms]
    return {**nodes, REQUIRED: {"nodeSelectorTerms": elsewhere}}


def _pod_affinity(job: Job, given: Manifest) -> Manifest:
    pods = given.get("podAffinity") or {}
    required = pods.get(REQUIRED) or []
    terms = [*_near_each_other(job), *([] if required else _after_the_first(job))]
    return {**pods, REQUIRED: [*required, *terms]} if terms else pods


def _near_each_other(job: Job) -> list[Manifest]:
    if not (key := job.placement.together):
        return []
    return [{"labelSelector": _own_pods(job), "topologyKey": ZONE if key == "zone" else key}]


def _after_the_first(job: Job) -> list[Manifest]:
    """Keep pods that an elastic job can do without from taking the room of its first pod, where the others meet.

    Kubernetes lets the first pod pass, because it is the only one that matches the term itself. Gang schedulers and
    Kueue admit pods together, and a pod with a term of the user's would have to match both with one pod.
    """
    has_spare_pods = job.elastic is not None and job.elastic.min_replicas < job.elastic.max_replicas
    if not has_spare_pods or job.meets_in_etcd or job.placement.scheduler:
        return []
    first = {"matchLabels": {**_own_pods(job)["matchLabels"], job.kind.traits.index_label: "0"}}
    return [{"labelSelector": first, "topologyKey": ANY_NODE}]


def _app_labels(job: Job) -> dict[str, str]:
    """Return the labels by which monitoring and other tools of the cluster find the pods of trainings."""
    if not job.is_training:
        return {}
    run = job.labels[RUN_ID]
    return {APP_LABEL + "name": "kubetrain", APP_LABEL + "component": "training", APP_LABEL + "instance": run}


def _own_pods(job: Job) -> Manifest:
    return {"matchLabels": {name: job.labels[name] for name in (RUN_ID, STAGE)}}


def _spot_labels(placement: Placement) -> dict[str, str]:
    return dict(SPOT[placement.spot][0]) if placement.spot else {}


def _spot_tolerations(placement: Placement) -> list[Manifest]:
    if not placement.spot or not (key := SPOT[placement.spot][1]):
        return []
    return [{"key": key, "operator": "Exists", "effect": "NoSchedule"}]


def _istio(placement: Placement) -> dict[str, str]:
    """Disable the sidecar: current Istio reads this as a label, older versions as an annotation."""
    return {} if placement.istio else {"sidecar.istio.io/inject": "false"}


def queue_label(placement: Placement) -> dict[str, str]:
    return {KUEUE_LABEL: placement.queue} if placement.scheduler == "kueue" else {}


def _strings(values: Mapping[str, Any]) -> dict[str, str]:
    """Convert numbers and booleans: Kubernetes accepts only strings in these maps."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}


def without_empty(values: Manifest) -> Manifest:
    return {name: value for name, value in values.items() if value not in ("", [], {})}
