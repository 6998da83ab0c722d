"""How NCCL connects the processes, from what each of them has logged.

NET/IB is InfiniBand or RoCE, NET/Socket is TCP; P2P and SHM connect the GPUs of a pod.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kubetrain_trainer.some_of import some_of

VERSION = re.compile(r"NCCL version (\d\S*)")
USED = re.compile(r"NCCL INFO Using network (.+)")
INTERFACES = re.compile(r"NCCL INFO NET/(\S+) : Using (\[0\].*)")
INTERFACE = re.compile(r"\[\d+\]([^\s<]+)")
CHANNELS = re.compile(r"NCCL INFO (\d+) coll channels")
LINK = re.compile(r"NCCL INFO Channel .* via (?:(NET/[^/\n]+)/\d+(?:\(\d+\))?(/GDRDMA)?|((?:P2P|SHM)/[a-zA-Z]+))")
NVLINK = re.compile(r"NCCL INFO Pattern .* type NV[LB]/")
INFINIBAND, TCP = "NET/IB", "NET/Socket"


@dataclass(frozen=True, kw_only=True)
class Transport:
    """The connections of a process."""

    version: str
    channels: int
    interfaces: frozenset[str]
    """Network interfaces, or InfiniBand devices with their ports."""
    between_pods: frozenset[str]
    within_a_pod: frozenset[str]
    has_gpu_direct: bool
    """True if the network reads or writes the memory of GPUs."""
    has_nvlink: bool


def read_transport(log: str) -> Transport:
    """Return what NCCL has logged in a process."""
    links = LINK.findall(log)
    return Transport(
        version=next(iter(VERSION.findall(log)), ""),
        channels=max(map(int, CHANNELS.findall(log)), default=0),
        interfaces=_interfaces(log),
        between_pods=frozenset(network for network, _, _ in links if network),
        within_a_pod=frozenset(local for _, _, local in links if local),
        has_gpu_direct=any(direct for _, direct, _ in links),
        has_nvlink=NVLINK.search(log) is not None,
    )


def _interfaces(log: str) -> frozenset[str]:
    """Return the interfaces of the network in use, such as mlx5_0:1/IB, or eth0 without its address."""
    used = {name.strip() for name in USED.findall(log)}
    names = (name for network, line in INTERFACES.findall(log) if network in used for name in INTERFACE.findall(line))
    return frozenset(name if "/" in name else name.partition(":")[0] for name in names)


def describe_transport(processes: Iterable[Transport]) -> str:
    """Return how all processes are connected, for the banner; empty if NCCL has logged no connection."""
    found = [process for process in processes if process.between_pods or process.within_a_pod]
    parts = [*_links_between_pods(found), *_links_within_pods(found), *_channels(found)]
    versions = " and ".join(sorted({process.version for process in found}))
    return f"NCCL {versions} ({'; '.join(parts)})" if parts else ""


def _links_between_pods(found: Sequence[Transport]) -> Iterator[str]:
    if links := _joined(process.between_pods for process in found):
        direct = " with GPUDirect RDMA" if any(process.has_gpu_direct for process in found) else ""
        interfaces = _joined(process.interfaces for process in found)
        yield f"between pods {links}{direct}{f' over {interfaces}' if interfaces else ''}"


def _links_within_pods(found: Sequence[Transport]) -> Iterator[str]:
    if links := _joined(process.within_a_pod for process in found):
        yield f"within a pod {links}{' over NVLink' if any(process.has_nvlink for process in found) else ''}"


def _channels(found: Sequence[Transport]) -> Iterator[str]:
    if channels := max((process.channels for process in found), default=0):
        yield f"{channels} channels"


def _joined(names: Iterable[frozenset[str]]) -> str:
    return some_of(sorted(frozenset[str]().union(*names)))


def shortfalls(processes: Sequence[tuple[str, Transport]], environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each thing that the processes lack.

    Args:
        processes: The node and the connections of each.
        environment: The variables by which the job asks for InfiniBand.
    """
    on_tcp = [node for node, process in processes if TCP in process.between_pods]
    if on_tcp and asks_for_infiniband(environment):
        yield (
            f"the training uses TCP on {_nodes(on_tcp)}, but InfiniBand was asked for: request the device with "
            "pods.rdma, and check it with `ibstat` in the pod"
        )
    copying = [node for node, process in processes if INFINIBAND in process.between_pods and not process.has_gpu_direct]
    if copying:
        yield (
            f"InfiniBand copies through the memory of the host on {_nodes(copying)}: load nvidia_peermem on the node, "
            "or use a driver and kernel with DMA-BUF, so that it reads the memory of GPUs (GPUDirect RDMA)"
        )


def asks_for_infiniband(environment: Mapping[str, str]) -> bool:
    asked = environment.get("NCCL_NET") == "IB" or environment.get("NCCL_IB_DISABLE") == "0"
    return asked or "NCCL_IB_HCA" in environment


def version_conflict(versions: Sequence[tuple[str, str]]) -> str:
    """Return a warning if the nodes have different versions, between which NCCL cannot connect; else nothing.

    Args:
        versions: The node and the version of each process.
    """
    nodes: dict[str, list[str]] = {}
    for node, version in versions:
        nodes.setdefault(version, []).append(node)
    if len(nodes) == 1:
        return ""
    found = ", ".join(f"NCCL {version} on {_nodes(nodes[version])}" for version in sorted(nodes))
    return f"the pods have different versions ({found}), between which NCCL cannot connect: give all the same image"


def _nodes(names: Iterable[str]) -> str:
    return some_of(list(dict.fromkeys(names)))
