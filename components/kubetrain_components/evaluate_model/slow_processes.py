"""The processes for which the others waited, in the rows of metrics.jsonl."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def slow_processes(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield a fact for each process, node and part that was slow: the largest delay, and the first and last step."""
    found: dict[tuple[int, str, str], list[tuple[float, int]]] = {}
    for row in rows:
        for each in row.get("stragglers", ()):
            key = each["rank"], each["node"], each["part"]
            found.setdefault(key, []).append((each["delay_share"], row["step"]))
    for (rank, node, part), delays in found.items():
        largest, (_, first), (_, last) = max(delays)[0], delays[0], delays[-1]
        where = f"rank {rank} on node {node}, steps {first:,} to {last:,}"
        yield "Slow process", f"{where}: the others waited up to {largest:.0%} of a step for its {part}"
