"""The learning rate, the decay of averaged weights and the end of a training, as functions of its progress."""

import math

from kubetrain_trainer.checkpoint_layout import TrainingProgress
from kubetrain_trainer.config import TrainConfig

EXPONENTS = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}


def peak_rate(config: TrainConfig, global_batch: int) -> float:
    """Return the learning rate that the warmup leads to, scaled to the global batch."""
    scale: float = (global_batch / config.base_batch_size) ** EXPONENTS[config.lr_scaling]
    return config.learning_rate * scale


def rate_factor(config: TrainConfig, epochs_done: float) -> float:
    """Return the fraction of the peak rate for the step that completes `epochs_done`: warmed up, then scheduled."""
    if epochs_done < config.warmup_epochs:
        return epochs_done / config.warmup_epochs
    return _schedule_factor(config, epochs_done)


def averaging_decay(config: TrainConfig, step: int) -> float:
    """Return the decay at this step. It is low at first, so that the initial weights are soon forgotten."""
    return min(config.ema_decay, (1 + step) / (10 + step))


def is_finished(config: TrainConfig, progress: TrainingProgress) -> bool:
    return progress.epoch >= config.epochs or (config.max_steps > 0 and progress.step >= config.max_steps)


def _schedule_factor(config: TrainConfig, epochs_done: float) -> float:
    """Return the factor of the peak learning rate."""
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "step":
        period = config.step_epochs or config.epochs / 3
        drops = math.ceil(epochs_done / period) - 1  # the step that completes a period still belongs to it
        return config.step_factor**drops
    remaining = max(config.epochs - config.warmup_epochs, 1e-9)
    progress = min((epochs_done - config.warmup_epochs) / remaining, 1.0)
    return (1 + math.cos(math.pi * progress)) / 2
