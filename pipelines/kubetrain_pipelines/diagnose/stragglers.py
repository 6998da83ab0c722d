"""The rank that is behind: when a collective operation times out, PyTorch logs how many each rank has started."""

from collections.abc import Iterable, Iterator

from kubetrain_pipelines.diagnose.nccl_rules import STRAGGLER, WORK
from kubetrain_pipelines.diagnose.scan import Match


def stragglers(matches: Iterable[Match]) -> Iterator[Match]:
    """Yield, for each group of processes, the rank that has started fewer operations than another."""
    groups: dict[str, dict[str, tuple[int, Match]]] = {}
    for match in matches:
        if match.rule is WORK and not match.is_overcome:
            group, rank, work = _report(match)
            groups.setdefault(group, {})[rank] = (work, match)
    for ranks in groups.values():
        last, first = (choose(ranks, key=lambda rank: ranks[rank][0]) for choose in (min, max))
        (fewest, match), (most, _) = ranks[last], ranks[first]
        if fewest < most:
            text = f"rank {last} has started {fewest} collective operations, and rank {first} has started {most}"
            yield Match(STRAGGLER, match.source, match.line, text)


def _report(match: Match) -> tuple[str, str, int]:
    """Return the group of a report, the rank in it, and the number of operations that this rank has started."""
    found = WORK.match(match.text.encode())
    assert found is not None
    group, _, rank = found[1].decode().rpartition("Rank ")
    return group, rank, int(found[2])
