"""A moving average of the weights, which is validated and exported instead of the weights themselves."""

import keras
import tensorflow as tf

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.schedule import averaging_decay


class Averages:
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
