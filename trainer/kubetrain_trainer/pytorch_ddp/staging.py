"""Where a training's state lies while it is written: the steps go on and change the original."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class Staging:
    """Memory for one state, kept from save to save: to allocate it anew takes longer than to copy."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._copied: torch.cuda.Event | None = None

    def copy(self, state: Any) -> Any:
        """The state with a copy on the CPU in place of each tensor; a GPU makes them when it gets to it."""
        tensors = list(_tensors_in(state))
        if [_kind(tensor) for tensor in tensors] != [_kind(tensor) for tensor in self._kept]:
            self._kept = [torch.empty_like(each, device="cpu", pin_memory=each.is_cuda) for each in tensors]
        for kept, tensor in zip(self._kept, tensors, strict=True):
            kept.copy_(tensor, non_blocking=True)
        if any(tensor.is_cuda for tensor in tensors):
            self._copied = torch.cuda.current_stream().record_event()
        return copy.deepcopy(state, {id(tensor): kept for tensor, kept in zip(tensors, self._kept, strict=True)})

    def wait(self) -> None:
        """Until the copies are made: for the writer, the steps need not wait."""
        if self._copied is not None:
            self._copied.synchronize()


def _kind(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def _tensors_in(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict | list | tuple):
        for value in state.values() if isinstance(state, dict) else state:
            yield from _tensors_in(value)
