"""Judge what the processes measured before the first step: which links and devices stand out.

The pods form a ring. Each process exchanges data with the process of its number in the next pod and in the previous
one, in rounds in which no pod has two partners, which would share its network.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kubetrain_trainer.process_role import ProcessRole
from kubetrain_trainer.some_of import MAX_NAMED, some_of
from kubetrain_trainer.start_banner import counted

LINK_BYTES = 64 * 2**20
"""The bytes that the two processes of a link send each other at once."""
SLOW_FACTOR = 2.0
"""A link or a device is slow if it takes this many times what the fastest quarter of them takes at most."""
MIN_RATE = 100e6
"""Bytes per second. A link below this is slow however few there are: even Gigabit Ethernet carries more."""


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
    place: str
    warning: str


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
    rates = [rate(each) for each in _links(measured).values()]
    links = f", {counted(len(rates), 'link', 'links')} between nodes at {_range(rates)} GB/s" if rates else ""
    bad = f"; slow or faulty: {some_of([each.place for each in findings])}" if findings else ""
    return f"{counted(len(measured), 'device', 'devices')}{links}, in {seconds:.1f} s{bad}"


def find(measured: Sequence[Examined]) -> list[Finding]:
    """Return the links and devices that stand out."""
    return [*_faulty_devices(measured), *_slow_devices(measured), *_slow_links(measured)]


def warnings(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the warnings of the first findings, and the number of the others."""
    yield from (each.warning for each in findings[:MAX_NAMED])
    if len(findings) > MAX_NAMED:
        yield f"{len(findings) - MAX_NAMED} more links or devices are slow or faulty"


def _faulty_devices(measured: Iterable[Examined]) -> Iterator[Finding]:
    for each in measured:
        if not each.is_exact:
            text = f"faulty device: {each.place} multiplies matrices wrongly ({each.device}): take this node out of use"
            yield Finding(place=each.place, warning=text)


def _slow_devices(measured: Sequence[Examined]) -> Iterator[Finding]:
    """Compare each device with those of its kind."""
    kinds = {
        kind: [each.product_seconds for each in measured if each.device == kind]
        for kind in {each.device for each in measured}
    }
    limits = {kind: _limit(seconds) for kind, seconds in kinds.items()}
    for each in sorted(measured, key=lambda each: -each.product_seconds):
        if each.product_seconds > limits[each.device]:
            text = (
                f"slow device: {each.place} takes {each.product_seconds * 1e3:.3g} ms for a product of matrices, "
                f"expected at most {limits[each.device] * 1e3:.3g} ms ({each.device}): look for other programs on this "
                "node, and for errors and low clocks of its GPU with `nvidia-smi -q`, or exclude it with affinity in "
                "placement"
            )
            yield Finding(place=each.place, warning=text)


def _slow_links(measured: Sequence[Examined]) -> Iterator[Finding]:
    links = _links(measured)
    if not links:
        return
    limit = min(_limit(links.values()), LINK_BYTES / MIN_RATE)
    places = {each.rank: each.place for each in measured}
    for (one, another), seconds in sorted(links.items(), key=lambda link: -link[1]):
        if seconds > limit:
            place = f"{places[one]} to {places[another]}"
            text = (
                f"slow link: {place} carries {rate(seconds):.3g} GB/s, expected at least {rate(limit):.3g} GB/s: check "
                "the network cards and cables of these nodes, or exclude one with affinity in placement"
            )
            yield Finding(place=place, warning=text)


def _links(measured: Sequence[Examined]) -> dict[tuple[int, int], float]:
    """Return the time of each link between nodes, as its slower end measured it. Pods of a node need no network."""
    nodes = {each.rank: each.node for each in measured}
    links: dict[tuple[int, int], float] = {}
    for each in measured:
        for rank, seconds in each.link_seconds.items():
            link = (min(rank, each.rank), max(rank, each.rank))
            if nodes[rank] != each.node:
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
