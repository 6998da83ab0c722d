"""A copy of the training's state in memory, to be written while the next steps change the original."""

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from kubetrain_trainer.processes.resources import free_memory
from kubetrain_trainer.pytorch_ddp.structures import tensors_in, with_tensors
from kubetrain_trainer.pytorch_ddp.timing import timed_event

log = logging.getLogger(__name__)


class Staging:
    """Memory for one state, reused by each save because allocating it takes longer than copying.

    A GPU copies beside the next step, on a stream of its own, until that step changes the state.
    """

    def __init__(self, in_pod: int = 1) -> None:
        """`in_pod` is the number of this pod's processes that copy at the same time."""
        self._in_pod = in_pod
        self._is_warned = False
        self._copies: list[Tensor] = []
        self._sources: list[Tensor] = []
        """What is being copied. Its memory must not be used again before, even if nothing else needs it."""
        self._stream: Any = None
        self._copy_done: Any = None
        self._wait: tuple[Any, Any] | None = None
        """Events at the beginning and the end of the time that the GPU waited for its copies."""

    def copy(self, state: Any, changed_by_forward: Iterable[Tensor] = ()) -> Any:
        """Return the state with a copy on the CPU of each tensor.

        GPUs copy asynchronously: call wait() before using the copy, and before_update() before changing the state,
        except for the tensors that a forward pass changes.
        """
        tensors = list(tensors_in(state))
        if not self._has_copies(tensors):
            self._copies = [torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda) for tensor in tensors]
        self._sources = tensors
        # Buffers, such as running statistics, change in the next forward pass: the steps' stream copies them before it.
        # Weights and optimizer state change only in the next optimizer step, so that another stream has until then.
        first = {tensor.data_ptr() for tensor in changed_by_forward}
        pairs = list(zip(self._copies, tensors, strict=True))
        _copy(pair for pair in pairs if pair[1].data_ptr() in first)
        with self._own_stream(any(tensor.is_cuda for tensor in tensors)):
            _copy(pair for pair in pairs if pair[1].data_ptr() not in first)
        return with_tensors(state, self._copies)

    def wait(self) -> None:
        """Wait for the GPU's copies. The writer calls this, so that the steps need not wait."""
        if (done := self._copy_done) is not None:  # gpu_stall() of another thread may forget it
            done.synchronize()
        self._sources = []

    def before_update(self) -> None:
        """Let the GPU wait for its copies before it changes the state. The host does not wait."""
        if self._copy_done is None or self._wait is not None:
            return
        began = timed_event()
        torch.cuda.current_stream().wait_event(self._copy_done)
        self._wait = began, timed_event()

    def gpu_stall(self) -> dict[str, float]:
        """Return how long the GPU's steps waited for the last copies, once and after a later step was waited for."""
        if self._wait is None or not self._wait[1].query():
            return {}
        began, ended = self._wait
        self._copy_done = self._wait = None
        return {"checkpoint_gpu_stall_seconds": round(began.elapsed_time(ended) / 1000, 6)}

    def has_room(self, state: Any) -> bool:
        """Return True if the memory has room for copies of this state, and for a little besides. Call it in all
        processes before any of them copies."""
        tensors = list(tensors_in(state))
        needed, free = sum(map(_bytes_of_copy, tensors)) * self._in_pod, free_memory()
        fits = self._has_copies(tensors) or free is None or needed <= 0.9 * free
        if not fits and not self._is_warned:
            self._is_warned = True
            log.warning(
                "the training waits while its checkpoints are written, because a copy of the state takes %.1f GB and "
                "%.1f GB are free: give each pod more memory to avoid that",
                needed / 1e9,
                (free or 0) / 1e9,
            )
        return fits

    def _has_copies(self, tensors: list[Tensor]) -> bool:
        return [_kind(tensor) for tensor in tensors] == [_kind(tensor) for tensor in self._copies]

    @contextlib.contextmanager
    def _own_stream(self, on_gpu: bool) -> Iterator[None]:
        if not on_gpu:
            yield
            return
        self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())  # for the update that is still being computed
        with torch.cuda.stream(self._stream):
            yield
        self._copy_done, self._wait = self._stream.record_event(), None


def _copy(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    for copied, tensor in pairs:
        copied.copy_(tensor, non_blocking=True)


def _bytes_of_copy(tensor: Tensor) -> int:
    """Return what its copy takes. Memory that a GPU copies to comes in powers of two."""
    return 1 << (tensor.nbytes - 1).bit_length() if tensor.is_cuda and tensor.nbytes else tensor.nbytes


def _kind(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype
