"""Judge what the processes measured before the first step: which links and devices stand out.

The pods form a ring. Each process exchanges data with the process of its number in the next pod and in the previous
one, in rounds in which no pod has two partners, which would share its network.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.processes.process_group import counted
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.some_of import MAX_NAMED, some_of

LINK_BYTES = 64 * 2**20
"""The bytes that the two processes of a link send each other at once."""
SLOW_FACTOR = 2.0
"""A link or a device is slow if it takes this many times what the fastest quarter of them takes at most."""
MIN_RATE = 100e6
"""Bytes per second. A link below this is slow however few there are: even Gigabit Ethernet carries more."""
REMEDY_OF_DEVICE = (
    "look for other programs on this node, and for errors and low clocks of its GPU with `nvidia-smi -q`, or exclude "
    "it (train.preflight=avoid, or affinity of pods.pod)"
)
REMEDY_OF_LINK = (
    "check the network cards and cables of these nodes, or exclude one (train.preflight=avoid, or affinity of pods.pod)"
)


@dataclass(frozen=True, kw_only=True)
class Examined:
    """The measurements of one process."""

    rank: int
    node: str
    device: str
    product_seconds: float
    is_exact: bool
    """True if the device multiplied without an error."""
    link_seconds: Mapping[int, float]
    """The time of the exchange with each neighbor, by its rank."""

    @property
    def place(self) -> str:
        return f"rank {self.rank} on {self.node}"


@dataclass(frozen=True, kw_only=True)
class Finding:
    nodes: tuple[str, ...]
    """The node of a device, or both nodes of a link."""
    place: str
    evidence: str
    remedy: str

    @property
    def warning(self) -> str:
        return f"{self.evidence}: {self.remedy}"


class BadNodes(KubetrainError):
    """A training on these nodes would be slow or wrong. An attempt without them may succeed."""

    def __init__(self, nodes: Sequence[str], findings: Sequence[Finding]) -> None:
        more = f"; {len(findings) - 1} more in the log of rank 0" if len(findings) > 1 else ""
        super().__init__(f"bad nodes found before the first step: {some_of(nodes)} ({findings[0].evidence}{more})")
        self.avoid_nodes = tuple(nodes)


def rounds(pods: int) -> list[list[tuple[int, int]]]:
    """Return the pairs of neighbors. In each round, a pod is in one pair at most."""
    ring = [(pod, (pod + 1) % pods) for pod in range(pods)][: pods if pods > 2 else pods - 1]
    last = [ring.pop()] if len(ring) % 2 and len(ring) > 1 else []
    return [pairs for pairs in (ring[::2], ring[1::2], last) if pairs]


def partners(role: ProcessRole) -> Iterator[int | None]:
    """Yield the rank with which this process exchanges data in each round, or None."""
    pod, local = divmod(role.rank, role.local_world_size)
    for pairs in rounds(role.world_size // role.local_world_size):
        others = [one + another - pod for one, another in pairs if pod in (one, another)]
        yield others[0] * role.local_world_size + local if others else None


def describe(measured: Sequence[Examined], findings: Sequence[Finding], seconds: float) -> str:
    """Return what was measured, how long that took, and what stands out, in a line."""
    rates = [rate(duration) for duration in _links(measured).values()]
    links = f", {counted(len(rates), 'link', 'links')} between nodes at {_range(rates)} GB/s" if rates else ""
    bad = f"; slow or faulty: {some_of([finding.place for finding in findings])}" if findings else ""
    return f"{counted(len(measured), 'device', 'devices')}{links}, in {seconds:.1f} s{bad}"


def find(measured: Sequence[Examined]) -> list[Finding]:
    """Return the links and devices that stand out."""
    return [*_faulty_devices(measured), *_slow_devices(measured), *_slow_links(measured)]


def nodes_to_avoid(measured: Sequence[Examined], findings: Sequence[Finding]) -> list[str]:
    """Return the nodes of bad devices, and a few others so that no slow link is left; none if that would be all nodes.

    A bad node may have two slow links, so the node with most of them goes first, and of several such rank 0's last.

    Args:
        measured: The measurements by rank.
    """
    avoided = [*dict.fromkeys(node for finding in findings if len(finding.nodes) == 1 for node in finding.nodes)]
    first_ranks = {process.node: process.rank for process in reversed(measured)}
    while links := [finding.nodes for finding in findings if not {*finding.nodes} & {*avoided}]:
        slow = Counter(node for nodes in links for node in nodes)
        avoided.append(max(slow, key=lambda node: (slow[node], first_ranks[node])))
    return avoided if len(avoided) < len(first_ranks) else []


def warnings(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the warnings of the first findings, and the number of the others."""
    yield from (finding.warning for finding in findings[:MAX_NAMED])
    if len(findings) > MAX_NAMED:
        yield f"{len(findings) - MAX_NAMED} more links or devices are slow or faulty"


def _faulty_devices(measured: Iterable[Examined]) -> Iterator[Finding]:
    for process in measured:
        if not process.is_exact:
            evidence = f"faulty device: {process.place} multiplies matrices wrongly ({process.device})"
            yield Finding(
                nodes=(process.node,), place=process.place, evidence=evidence, remedy="take this node out of use"
            )


def _slow_devices(measured: Sequence[Examined]) -> Iterator[Finding]:
    """Compare each device with those of its kind."""
    kinds = {
        kind: [process.product_seconds for process in measured if process.device == kind]
        for kind in {process.device for process in measured}
    }
    limits = {kind: _limit(seconds) for kind, seconds in kinds.items()}
    for process in sorted(measured, key=lambda process: -process.product_seconds):
        if process.product_seconds > limits[process.device]:
            evidence = (
                f"slow device: {process.place} takes {process.product_seconds * 1e3:.3g} ms for a product of matrices, "
                f"expected at most {limits[process.device] * 1e3:.3g} ms ({process.device})"
            )
            yield Finding(nodes=(process.node,), place=process.place, evidence=evidence, remedy=REMEDY_OF_DEVICE)


def _slow_links(measured: Sequence[Examined]) -> Iterator[Finding]:
    links = _links(measured)
    if not links:
        return
    limit = min(_limit(links.values()), LINK_BYTES / MIN_RATE)
    by_rank = {process.rank: process for process in measured}
    for (one, another), seconds in sorted(links.items(), key=lambda link: -link[1]):
        if seconds > limit:
            ends = by_rank[one], by_rank[another]
            place = " to ".join(end.place for end in ends)
            evidence = f"slow link: {place} carries {rate(seconds):.3g} GB/s, expected at least {rate(limit):.3g} GB/s"
            nodes = tuple(end.node for end in ends)
            yield Finding(nodes=nodes, place=place, evidence=evidence, remedy=REMEDY_OF_LINK)


def _links(measured: Sequence[Examined]) -> dict[tuple[int, int], float]:
    """Return the time of each link between nodes, as its slower end measured it. Pods of a node need no network."""
    nodes = {process.rank: process.node for process in measured}
    links: dict[tuple[int, int], float] = {}
    for process in measured:
        for rank, seconds in process.link_seconds.items():
            link = (min(rank, process.rank), max(rank, process.rank))
            if nodes[rank] != process.node:
                links[link] = max(seconds, links.get(link, 0.0))
    return links


def _limit(seconds: Iterable[float]) -> float:
    """Return the most that is not slow. A bad node has two links, which may be most of them: the median may be bad."""
    ordered = sorted(seconds)
    return SLOW_FACTOR * ordered[(len(ordered) - 1) // 4]


def rate(seconds: float) -> float:
    """Return the gigabytes per second that a link carries in each direction."""
    return LINK_BYTES / seconds / 1e9


def _range(rates: Sequence[float]) -> str:
    lowest, highest = f"{min(rates):.3g}", f"{max(rates):.3g}"
    return lowest if lowest == highest else f"{lowest} to {highest}"
