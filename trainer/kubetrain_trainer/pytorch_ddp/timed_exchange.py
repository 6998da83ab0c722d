"""DistributedDataParallel that notes how long it waits for the other processes."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from kubetrain_trainer.own_time import OwnTime

ENGINE: Any = torch.autograd.Variable._execution_engine


class TimedExchange(DistributedDataParallel):
    """The wait for the last gradients is a callback of the autograd engine at the end of a backward pass. Callbacks run
    in the order in which they are queued, so one is queued before it, and one after it.
    """

    def __init__(self, model: nn.Module, own_time: OwnTime, **options: Any) -> None:
        super().__init__(model, **options)
        self._own_time = own_time
        *_, last = (parameter for parameter in model.parameters() if parameter.requires_grad)
        last.register_hook(self._on_gradient)  # type: ignore[no-untyped-call]  # the last parameter has one of the first gradients

    def _on_gradient(self, _: Tensor) -> None:
        ENGINE.queue_callback(self._on_computed)

    def _on_computed(self) -> None:
        ENGINE.queue_callback(partial(self._on_exchanged, self._own_time.clock.mark()))

    def _on_exchanged(self, began: Any) -> None:
        self._own_time.note_wait(began, self._own_time.clock.mark())

    def _sync_buffers(self) -> None:
        began = self._own_time.clock.mark()
        super()._sync_buffers()  # type: ignore[no-untyped-call]
        self._on_exchanged(began)
