"""Layers that keep their weights, and learning rates that differ between layers."""

import contextlib
import math
from collections.abc import Iterable, Iterator

import keras
import tensorflow as tf

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.layers import matching, rate_factors


def freeze(model: keras.Model, patterns: str) -> None:
    """Let these layers stay as they are, with the statistics of normalizations.

    Raises:
        InvalidSetting: if a pattern matches none, or nothing is left to train.
    """
    layers = [layer for layer in layers_of(model) if layer.weights]
    frozen = matching(patterns, [layer.name for layer in layers])
    for layer in layers:
        if layer.name in frozen:
            layer.trainable = False
    if not model.trainable_variables:
        raise InvalidSetting(f"train.freeze: '{patterns}' leaves nothing to train")


def layers_of(model: keras.Model) -> list[keras.Layer]:
    """Return the layers of the model, and theirs, in order."""
    return list(model._flatten_layers(include_self=False, recursive=True))


def without_frozen(variables: Iterable[keras.Variable], model: keras.Model) -> list[keras.Variable]:
    """Leave out the weights of frozen layers, which Keras lists with the statistics, although no step changes them."""
    weights = {id(variable) for layer in layers_of(model) for variable in layer._trainable_variables}
    return [variable for variable in variables if id(variable) not in weights]


def norm_of(model: keras.Model, precisely: bool) -> tuple[float, int]:
    """Return the norm of the trained weights, and their number."""
    kind = tf.float64 if precisely else tf.float32
    norms = [float(tf.norm(tf.cast(variable.value, kind))) for variable in model.trainable_variables]
    return math.hypot(*norms), model.count_params()


@contextlib.contextmanager
def layer_rates(model: keras.Model, layer_rate: float) -> Iterator[None]:
    """Let each layer take its part of an update, which Keras' optimizers make at one rate for all."""
    if layer_rate == 1:
        yield
        return
    before = [tf.identity(variable.value) for variable in model.trainable_variables]
    yield
    for variable, value, factor in zip(model.trainable_variables, before, factors_of(model, layer_rate), strict=True):
        variable.value.assign(value + factor * (variable.value - value))


def factors_of(model: keras.Model, layer_rate: float) -> list[float]:
    names = [variable.path.removeprefix(f"{model.name}/") for variable in model.trainable_variables]
    factors = rate_factors(names, layer_rate)
    return [factors[name] for name in names]
