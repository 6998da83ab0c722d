"""The learning rate, the decay of averaged weights and the end of a training, as functions of its progress."""

import math

from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
from kubetrain_trainer.settings.config import TrainConfig

EXPONENTS = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}


def peak_rate(config: TrainConfig, global_batch: int) -> float:
    """Return the learning rate that the warmup leads to, scaled to the global batch."""
    scale: float = (global_batch / config.base_batch_size) ** EXPONENTS[config.lr_scaling]
    return config.learning_rate * scale


def rate_factor(config: TrainConfig, step: int, epochs_done: float) -> float:
    """Return the fraction of the peak rate for a step that completes this many epochs: warmed up, then scheduled."""
    warmup_steps: int = config.scheduling.warmup_steps
    if step < warmup_steps:
        return step / warmup_steps
    done = config.epochs * share_done(config, step, epochs_done)
    warmup = done * warmup_steps / step if warmup_steps else config.warmup_epochs
    if done < warmup:
        return done / warmup
    if config.schedule == "step":
        every = config.scheduling.epochs
        periods = epochs_done / every if every else 3 * done / config.epochs
        return _step_factor(config, periods)
    begun = done * (step - 1) / step  # when the step begins: the rate would be 0 in the step after the last
    return _schedule_factor(config, max(begun, warmup), warmup)


def share_done(config: TrainConfig, step: int, epochs_done: float) -> float:
    """Return how much of the training is done, in steps or in epochs: what is nearer to its end.

    The steps in an epoch, which the number of processes changes, do not move it.
    """
    return max(epochs_done / config.epochs, step / config.max_steps if config.max_steps else 0.0)


def averaging_decay(config: TrainConfig, step: int) -> float:
    """Return the decay at this step. It is low at first, so that the initial weights are soon forgotten."""
    return min(config.ema_decay, (1 + step) / (10 + step))


def is_finished(config: TrainConfig, progress: TrainingProgress) -> bool:
    return progress.epoch >= config.epochs or (config.max_steps > 0 and progress.step >= config.max_steps)


def _step_factor(config: TrainConfig, periods: float) -> float:
    """Return the factor of the peak learning rate in the last of these periods between drops."""
    drops = math.ceil(periods) - 1  # the step that completes a period still belongs to it
    return float(max(config.scheduling.factor**drops, config.scheduling.min_rate))


def _schedule_factor(config: TrainConfig, done: float, warmup: float) -> float:
    """Return the factor of the peak learning rate after the warmup, when this many of all epochs are done."""
    if config.schedule == "constant":
        return 1.0
    lowest: float = config.scheduling.min_rate
    return lowest + (1 - lowest) * _decay_factor(config, done, warmup)


def _decay_factor(config: TrainConfig, done: float, warmup: float) -> float:
    """Return a number that falls from 1 to 0 at the end of the training."""
    if config.schedule == "wsd":
        share: float = config.scheduling.decay_share
        return min(max(config.epochs - done, 0.0) / (share * config.epochs), 1.0)
    progress = min((done - warmup) / max(config.epochs - warmup, 1e-9), 1.0)
    return 1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
