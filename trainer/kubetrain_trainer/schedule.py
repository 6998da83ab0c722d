"""The learning rate, how weights are averaged, and whether it is over: by how far a training is."""

import math

from kubetrain_trainer.checkpoint_layout import Progress
from kubetrain_trainer.config import TrainConfig

EXPONENTS = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}


def learning_rate(config: TrainConfig, epochs_done: float, global_batch: int) -> float:
    """The rate of the step that brings the training to `epochs_done`: scaled, warmed up, then the schedule."""
    scale: float = (global_batch / config.base_batch_size) ** EXPONENTS[config.lr_scaling]
    peak = config.learning_rate * scale
    if epochs_done < config.warmup_epochs:
        return peak * epochs_done / config.warmup_epochs
    return peak * _let_down(config, epochs_done)


def averaging_decay(config: TrainConfig, step: int) -> float:
    """What the average of the weights keeps of itself at this step: little at first, lest it dwell on the beginning."""
    return min(config.ema_decay, (1 + step) / (10 + step))


def is_finished(config: TrainConfig, progress: Progress) -> bool:
    return progress.epoch >= config.epochs or (config.max_steps > 0 and progress.step >= config.max_steps)


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
