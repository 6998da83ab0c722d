"""Moments in the work of a GPU, which the host notes without waiting for them, and traces of steps."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


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


@contextmanager
def recording(path: Path) -> Iterator[None]:
    """Record the operators of this process on the CPU and its GPU, for Perfetto (ui.perfetto.dev) or chrome://tracing."""
    gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    trace = profile(activities=[ProfilerActivity.CPU, *gpu])
    try:
        with trace:
            yield
    except BaseException:
        with suppress(Exception):  # the training's own failure matters more
            trace.export_chrome_trace(f"{path}.json.gz")
        raise
    trace.export_chrome_trace(f"{path}.json.gz")
