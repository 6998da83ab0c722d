"""The optimizer, chosen by the settings or by the task, with its peak learning rate, and averages of the weights."""

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.loop.schedule import averaging_decay, peak_rate
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.tensorflow_multiworker.task import KerasTask


class SGD(keras.optimizers.SGD):
    """SGD with PyTorch's momentum: a sum of gradients, which each step multiplies by its own learning rate.

    Keras adds up steps instead, so that steps at earlier rates keep their effect under a schedule.
    """

    def update_step(self, gradient: Any, variable: keras.Variable, learning_rate: Any) -> None:
        if self.momentum:
            gradient = self._with_momentum(ops.cast(gradient, variable.dtype), variable)
        self.assign_sub(variable, ops.multiply(gradient, ops.cast(learning_rate, variable.dtype)))

    def _with_momentum(self, gradient: Any, variable: keras.Variable) -> Any:
        total = self.momentums[self._get_variable_index(variable)]
        self.assign(total, ops.add(ops.multiply(total, self.momentum), gradient))
        return ops.add(gradient, ops.multiply(total, self.momentum)) if self.nesterov else total


def build_optimizer(config: TrainConfig, task: KerasTask, global_batch: int) -> tuple[keras.Optimizer, float]:
    """Return the task's own optimizer, or the one that the settings choose, and its peak rate."""
    optimizer = task.optimizer(task.model) if task.optimizer else _build_chosen(config, task.model.trainable_variables)
    peak = _rate(optimizer) if task.optimizer else peak_rate(config, global_batch)
    optimizer.build(task.model.trainable_variables)
    optimizer._all_reduce_sum_gradients = list  # all_reduce() has already summed them over all replicas
    return optimizer, peak


def _build_chosen(config: TrainConfig, variables: list[keras.Variable]) -> keras.Optimizer:
    options = config.optimizing
    if config.optimizer == "adamw":
        adamw = keras.optimizers.AdamW(
            config.learning_rate, config.weight_decay, options.beta1, options.beta2, options.epsilon or 1e-7
        )
        adamw.exclude_from_weight_decay([variable for variable in variables if not is_decayed(config, variable)])
        return adamw
    return SGD(config.learning_rate, options.momentum, options.nesterov)


def is_decayed(config: TrainConfig, variable: keras.Variable) -> bool:
    """Return True if weight decay applies to this variable."""
    return config.optimizing.decay_norms or len(variable.shape) > 1


def _rate(optimizer: keras.Optimizer) -> float:
    if not isinstance(optimizer, keras.Optimizer):
        raise KubetrainError(f"optimizer returned a {type(optimizer).__name__}: return one of keras.optimizers")
    if isinstance(optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        raise KubetrainError(
            "the learning rate of the task's own optimizer is a schedule: give it a number, the peak, and the task a "
            "schedule"
        )
    for name, instead in (("use_ema", "ema_decay"), ("gradient_accumulation_steps", "gradient_accumulation")):
        if getattr(optimizer, name, None):
            raise KubetrainError(f"the task's own optimizer has {name}: leave it out, and set train.{instead}")
    return float(optimizer.learning_rate.numpy())


class Averages:
    """A moving average of the weights, which is validated and exported instead of the weights themselves."""

    def __init__(
        self, config: TrainConfig, model: keras.Model, averaged: keras.Model, strategy: tf.distribute.Strategy
    ) -> None:
        """`averaged` is a second model of the same architecture, whose weights are overwritten."""
        self.model = averaged
        """The model with the averages of its weights and running statistics."""
        self._config = config
        self._strategy = strategy
        self._pairs = list(zip(averaged.weights, model.weights, strict=True))
        averaged.set_weights(model.get_weights())

    def update(self, step: int) -> None:
        """Add the weights of this step to the averages."""
        self._move(tf.constant(1 - averaging_decay(self._config, step)))

    @tf.function
    def _move(self, fraction: tf.Tensor) -> None:
        for average, weight in self._pairs:
            self._strategy.extended.update(average.value, _move_towards, args=(weight.value, fraction))


def _move_towards(average: tf.Variable, weight: tf.Variable, fraction: tf.Tensor) -> tf.Tensor:
    if not average.dtype.is_floating:  # a counter
        return average.assign(weight)
    return average.assign_add(tf.cast(fraction, average.dtype) * (weight - average))
