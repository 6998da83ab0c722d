"""A copy of the training's state in memory, to be written while the next steps change the original."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class Staging:
    """Memory for one state, reused by each save because allocating it takes longer than copying."""

    def __init__(self) -> None:
        self._copies: list[Tensor] = []
        self._copy_done: torch.cuda.Event | None = None

    def copy(self, state: Any) -> Any:
        """Return the state with a copy on the CPU of each tensor. GPUs copy asynchronously: call wait() before use."""
        tensors = list(_tensors_in(state))
        if [_kind(tensor) for tensor in tensors] != [_kind(tensor) for tensor in self._copies]:
            self._copies = [torch.empty_like(each, device="cpu", pin_memory=each.is_cuda) for each in tensors]
        for copied, tensor in zip(self._copies, tensors, strict=True):
            copied.copy_(tensor, non_blocking=True)
        if any(tensor.is_cuda for tensor in tensors):
            self._copy_done = torch.cuda.current_stream().record_event()
        return copy.deepcopy(state, {id(tensor): copied for tensor, copied in zip(tensors, self._copies, strict=True)})

    def wait(self) -> None:
        """Wait for the GPU's copies. The writer calls this, so that the steps need not wait."""
        if self._copy_done is not None:
            self._copy_done.synchronize()


def _kind(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def _tensors_in(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict | list | tuple):
        for value in state.values() if isinstance(state, dict) else state:
            yield from _tensors_in(value)
