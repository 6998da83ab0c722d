"""Traces of steps, for Perfetto (ui.perfetto.dev) or chrome://tracing."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


@contextmanager
def recording(path: Path) -> Iterator[None]:
    """Record the operators of this process on the CPU and its GPU."""
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
