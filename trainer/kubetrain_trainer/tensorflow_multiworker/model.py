"""The built-in models."""

import inspect
from collections.abc import Mapping
from typing import Any

import keras
from keras import layers

from kubetrain_trainer.tensorflow_multiworker.layers import layers_of

MOMENTUM = 0.9
"""PyTorch's momentum. With the 0.99 or 0.999 of Keras' models, statistics lag by hundreds or thousands of steps."""


def build_model(name: str, pixels: int, num_classes: int, model_args: Mapping[str, Any]) -> keras.Model:
    shape = (pixels, pixels, 3)
    if name == "digits_cnn":
        return digits_cnn(shape, num_classes, **model_args)
    if name == "keras:resnet18":
        return resnet18(shape, num_classes, **model_args)
    builders = {key.lower(): getattr(keras.applications, key) for key in dir(keras.applications) if key[0].isupper()}
    build = builders[name.removeprefix("keras:")]
    arguments = {"weights": None, "input_shape": shape, "classes": num_classes, "classifier_activation": None}
    if "include_preprocessing" in inspect.signature(build).parameters:
        arguments["include_preprocessing"] = False  # the data is already normalized
    model = build(**arguments, **model_args)
    for layer in layers_of(model):
        if isinstance(layer, layers.BatchNormalization):
            layer.momentum = MOMENTUM
    return model


def digits_cnn(shape: tuple[int, int, int], num_classes: int, width: int = 32, dropout: float = 0.2) -> keras.Model:
    """Three convolutions, for small images of any size."""
    inputs = keras.Input(shape)
    outputs = _convolution(inputs, width)
    outputs = _convolution(outputs, 2 * width)
    outputs = layers.MaxPool2D(2)(outputs)
    outputs = _convolution(outputs, 4 * width)
    outputs = layers.GlobalAveragePooling2D()(outputs)
    outputs = layers.Dropout(dropout)(outputs)
    return keras.Model(inputs, layers.Dense(num_classes)(outputs))


def resnet18(shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    """ResNet-18, which keras.applications lacks."""
    inputs = keras.Input(shape)
    outputs = _convolution(inputs, 64, size=7, strides=2)
    outputs = layers.MaxPool2D(3, strides=2, padding="same")(outputs)
    for stage, filters in enumerate((64, 128, 256, 512)):
        outputs = _residual_block(outputs, filters, strides=1 if stage == 0 else 2)
        outputs = _residual_block(outputs, filters, strides=1)
    outputs = layers.GlobalAveragePooling2D()(outputs)
    return keras.Model(inputs, layers.Dense(num_classes)(outputs))


def _residual_block(inputs: Any, filters: int, strides: int) -> Any:
    outputs = _convolution(inputs, filters, strides=strides)
    outputs = _convolution(outputs, filters, activation=None)
    if inputs.shape != outputs.shape:
        inputs = _convolution(inputs, filters, size=1, strides=strides, activation=None)
    return layers.ReLU()(layers.Add()([inputs, outputs]))


def _convolution(inputs: Any, filters: int, size: int = 3, strides: int = 1, activation: str | None = "relu") -> Any:
    outputs = layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(inputs)
    outputs = layers.BatchNormalization(momentum=MOMENTUM, epsilon=1e-5)(outputs)
    return layers.Activation(activation)(outputs) if activation else outputs
