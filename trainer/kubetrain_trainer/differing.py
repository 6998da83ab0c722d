"""The process that differs from the others."""

import math
from collections.abc import Sequence

from kubetrain_trainer.node_name import node_name
from kubetrain_trainer.process_group import ProcessGroup


def difference(values: Sequence[float], group: ProcessGroup, tolerance: float = 0.0, stride: int = 1) -> str:
    """Name the process that differs most from the majority, and one of these; return "" if all agree.

    Args:
        values: The value of each process, the same list in all of them; NaN: it cannot be compared.
        stride: The distance of ranks that must agree.
    """
    for first in range(stride):
        known = {rank: values[rank] for rank in range(first, len(values), stride) if not math.isnan(values[rank])}
        if known and max(known.values()) - min(known.values()) > tolerance:
            usual = max(known, key=lambda rank: sum(abs(known[rank] - each) <= tolerance for each in known.values()))
            odd = max(known, key=lambda rank: abs(known[rank] - known[usual]))
            nodes = group.gather_text(node_name())
            return ", and ".join(f"{values[rank]:.10g} in rank {rank} on node {nodes[rank]}" for rank in (odd, usual))
    return ""
