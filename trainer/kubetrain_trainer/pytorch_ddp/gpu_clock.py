"""Moments in the work of a GPU, which the host notes without waiting for them."""

from typing import Any

import torch


class GpuClock:
    def mark(self) -> Any:
        return timed_event()

    def has_passed(self, mark: Any) -> bool:
        passed: bool = mark.query()
        return passed

    def seconds(self, began: Any, ended: Any) -> float:
        return float(began.elapsed_time(ended)) / 1000


def timed_event() -> Any:
    """Record an event at the end of what the GPU has to do so far."""
    return torch.cuda.current_stream().record_event(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
