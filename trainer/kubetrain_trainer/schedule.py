"""The learning rate at any moment, by how far the training is: the same at any number of processes."""

import math

from kubetrain_trainer.config import TrainConfig

EXPONENTS = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}


def learning_rate(config: TrainConfig, epochs_done: float, global_batch: int) -> float:
    """The rate of the step that brings the training to `epochs_done`: scaled, warmed up, then the schedule."""
    scale: float = (global_batch / config.base_batch_size) ** EXPONENTS[config.lr_scaling]
    peak = config.learning_rate * scale
    if epochs_done < config.warmup_epochs:
        return peak * epochs_done / config.warmup_epochs
    return peak * _let_down(config, epochs_done)


def _let_down(config: TrainConfig, epochs_done: float) -> float:
    """The share of the peak that the schedule leaves."""
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "step":
        period = config.step_epochs or config.epochs / 3
        drops = math.ceil(epochs_done / period) - 1  # the step that completes a period is still of it
        return config.step_factor**drops
    remaining = max(config.epochs - config.warmup_epochs, 1e-9)
    progress = min((epochs_done - config.warmup_epochs) / remaining, 1.0)
    return (1 + math.cos(math.pi * progress)) / 2
