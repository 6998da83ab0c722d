"""Batches that are copied to the device while the steps before them compute."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from kubetrain_trainer.pytorch_ddp.structures import map_movable, tensors_in, to_device

Copying = Future[tuple[Any, Any]]
"""A batch on the device, and the event after which the copy is complete; None without a GPU."""


def prefetched(batches: Iterable[tuple[Any, Any]], device: torch.device) -> Iterator[tuple[Any, Copying]]:
    """Let a thread copy each batch while the one before is used, so that no step waits for it."""
    begun = deque[tuple[Any, Copying]]()
    with ThreadPoolExecutor(max_workers=1) as thread:
        for indices, batch in batches:
            begun.append((indices, thread.submit(_copy, batch, device)))
            if len(begun) > 1:  # the copy of the next batch has begun before this one is used
                yield begun.popleft()
        while begun:
            yield begun.popleft()


def copied(copying: Copying, device: torch.device) -> Any:
    """Return the batch. What the GPU computes next waits for its copy; the host waits only for the thread."""
    batch, ready = copying.result()
    if ready is None:
        return batch
    steps = torch.cuda.current_stream(device)
    steps.wait_event(ready)
    for tensor in tensors_in(batch):
        if tensor.is_cuda and _is_dense(tensor):
            tensor.record_stream(steps)  # or its memory might be used again before they have read it
    return batch


def _copy(batch: Any, device: torch.device) -> tuple[Any, Any]:
    copy = partial(_moved, device=device)
    if device.type != "cuda":
        return map_movable(copy, batch), None
    # On the stream of the steps, the copy would begin only after all kernels that are queued there.
    stream = _stream(device)
    with torch.cuda.stream(stream):
        return map_movable(copy, batch), stream.record_event()


def _moved(value: Any, device: torch.device) -> Any:
    """Leave sparse tensors and objects that move themselves: their memory cannot be kept for a stream."""
    return to_device(value, device) if isinstance(value, Tensor) and _is_dense(value) else value


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_quantized


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]  # its work is short: it goes first
