"""The environment variables of a container: settings, secrets, and presets for NCCL."""

from collections.abc import Mapping

from kubetrain_components.jobs.job import Job, Replica
from kubetrain_components.jobs.quantity import whole_amount
from kubetrain_components.manifest import Manifest, strings
from kubetrain_trainer.resources import NODE_VARIABLE

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


def container_environment(job: Job, replica: Replica) -> list[Manifest]:
    """Return the variables: the placement's settings override presets, and the job's own variables override both."""
    placement = job.placement
    values = {**_threads(job), **NCCL_PRESETS[placement.network]}
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
    quantity = job.placement.cpu_limit or job.placement.cpu
    cpus = whole_amount(quantity) if quantity else 1
    return {"OMP_NUM_THREADS": str(max(1, cpus // job.processes_per_replica))}
