"""A moving average of the weights, which is validated and exported instead of the weights themselves."""

import copy
from itertools import chain

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.schedule import averaging_decay


class Averages:
    def __init__(self, config: TrainConfig, model: nn.Module) -> None:
        self.model = copy.deepcopy(model)
        """A copy of the model with the averages of its weights and running statistics."""
        self._config = config
        pairs = list(zip(_tensors(self.model), _tensors(model), strict=True))
        self._averages, self._weights = zip(*[pair for pair in pairs if pair[0].is_floating_point()], strict=True)
        self._counters = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights of this step to the averages."""
        decay = averaging_decay(self._config, step)
        get_ema_multi_avg_fn(decay)(self._averages, self._weights, step)  # type: ignore[no-untyped-call]
        for copy_of_counter, counter in self._counters:
            copy_of_counter.copy_(counter)


def _tensors(model: nn.Module) -> "chain[torch.Tensor]":
    return chain(model.parameters(), model.buffers())
