"""The learning rate at any moment, by how far the training is: the same at any number of processes."""

import math

from kubetrain_trainer.config import TrainConfig


def learning_rate(config: TrainConfig, epochs_done: float, global_batch: int) -> float:
    """The rate of the step that brings the training to `epochs_done`: scaled linearly, warmed up, then the schedule."""
    peak = config.learning_rate * global_batch / config.base_batch_size
    if epochs_done < config.warmup_epochs:
        return peak * epochs_done / config.warmup_epochs
    if config.schedule == "constant":
        return peak
    remaining = max(config.epochs - config.warmup_epochs, 1e-9)
    progress = min((epochs_done - config.warmup_epochs) / remaining, 1.0)
    return peak * (1 + math.cos(math.pi * progress)) / 2
