"""A moving average of the weights, which is validated and exported instead of the weights themselves."""

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.schedule import averaging_decay


class Averages:
    def __init__(self, config: TrainConfig, model: nn.Module, copied: nn.Module) -> None:
        self.model = copied
        """A copy of the model with the averages of its weights and running statistics."""
        copied.load_state_dict(model.state_dict())
        self._config = config
        parameters = list(zip(copied.parameters(), model.parameters(), strict=True))
        buffers = list(zip(copied.buffers(), model.buffers(), strict=True))
        floats = [[pair for pair in pairs if pair[0].is_floating_point()] for pairs in (parameters, buffers)]
        self._averaged = [tuple(zip(*pairs, strict=True)) for pairs in floats if pairs]
        """Lists of averages and of what they average: parameters, which may be sharded, and buffers, which are not."""
        self._counters = [pair for pair in (*parameters, *buffers) if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights of this step to the averages."""
        decay = averaging_decay(self._config, step)
        for averages, values in self._averaged:
            get_ema_multi_avg_fn(decay)(averages, values, step)  # type: ignore[no-untyped-call]
        for copy_of_counter, counter in self._counters:
            copy_of_counter.copy_(counter)
