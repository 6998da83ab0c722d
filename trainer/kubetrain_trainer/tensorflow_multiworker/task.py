"""The task to train, built-in or your own: model, data, loss and metrics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kubetrain_trainer.data.sampling import Sampler
from kubetrain_trainer.data.stored_images import ImageData, read_images, synthetic_images
from kubetrain_trainer.own_code.own_task import build_own_task, check_built
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.config_checks import check_framework
from kubetrain_trainer.settings.model_names import check_model, image_size, is_import_path
from kubetrain_trainer.tensorflow_multiworker.images.augmented_images import AugmentedImages, batch_and_mix
from kubetrain_trainer.tensorflow_multiworker.images.decoded_images import StoredImages
from kubetrain_trainer.tensorflow_multiworker.loading import Collate, batch_samples
from kubetrain_trainer.tensorflow_multiworker.model import build_model


@dataclass(frozen=True, kw_only=True)
class KerasTask:
    """The parts of a task. To train your own, set `model` to a function `build(config, data_dir) -> KerasTask`.

    Only model, data and loss are needed.
    """

    model: keras.Model
    data: Callable[[str], Any]
    """Returns the samples of a split: an object with `len()` and `load(index)`, TensorFlow operations that turn a
    sample's index into a pair of inputs and targets."""
    collate: Collate = batch_samples
    """Makes a dataset of batches of a size from a dataset of samples, such as by `samples.padded_batch(size)`."""
    training_data: Callable[[], Any] | None = None
    """Returns the samples to train on, if they differ from data("train"), such as by augmentation."""
    sampler: Sampler | None = None
    """Returns the indices of the samples of an epoch in the order of their use, such as balanced over classes: the same
    in each process, and as many for each epoch."""

    loss: Callable[[Any, Any], tf.Tensor]
    """Computes a loss for each sample, shape (batch,), from outputs and targets."""
    training_loss: Callable[[Any, Any], tf.Tensor] | None = None
    """The loss to minimize, if it differs from the loss that validation measures."""
    metrics: Mapping[str, Callable[[Any, Any], tf.Tensor] | keras.Metric] = field(default_factory=dict)
    """Functions by metric name. Each returns a value for each sample, shape (batch,); the metric is the mean.

    For a metric of the whole split, an object of keras.metrics or of your own subclass: its variables are added up over
    all processes before `result()`.
    """
    classes: tuple[str, ...] = ()
    """Class names of a classifier with outputs of shape (batch, classes). They add a confusion matrix to the report.

    Its targets are classes, of shape (batch,) or (batch, 1), or the share of each class, of shape (batch, classes).
    """

    optimizer: Callable[[keras.Model], keras.Optimizer] | None = None
    """Returns the optimizer of the model in place of the one that the settings choose. Its rate is a peak, which the
    schedule scales, but not `lr_scaling`."""
    schedule: Callable[[int], float] | None = None
    """Returns the factor of the peak learning rate at a step (the first is 1), in place of warmup and decay."""


def build_task(config: TrainConfig, data_dir: Path) -> KerasTask:
    check_model("tensorflow", config.model)
    check_framework("tensorflow", config)
    if not is_import_path(config.model):
        return _classify_images(config, data_dir)
    task: KerasTask = build_own_task(config, data_dir, KerasTask)
    check_built(f"the model of '{config.model}'", task.model)
    return task


def accuracy(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    is_number = ~tf.reduce_any(tf.math.is_nan(outputs), axis=1)  # else the answer would be the first class
    return tf.cast(tf.equal(tf.argmax(outputs, axis=1), tf.cast(targets, tf.int64)) & is_number, tf.float32)


def cross_entropy(outputs: tf.Tensor, targets: tf.Tensor, smoothing: float = 0.0) -> tf.Tensor:
    """Compute the loss of targets that are classes, or shares of classes."""
    if len(targets.shape) == 2:
        losses = tf.nn.softmax_cross_entropy_with_logits(labels=targets, logits=outputs)
    else:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=outputs)
    if smoothing:
        losses = (1 - smoothing) * losses - smoothing * tf.reduce_mean(tf.nn.log_softmax(outputs), axis=1)
    return losses


def _classify_images(config: TrainConfig, data_dir: Path) -> KerasTask:
    data = image_data(config, data_dir)
    return KerasTask(
        model=build_model(config.model, image_size(config), len(data.classes), config.model_args),
        data=data.split,
        training_data=data.training,
        collate=partial(batch_and_mix, classes=len(data.classes)),
        loss=cross_entropy,
        training_loss=partial(cross_entropy, smoothing=config.label_smoothing) if config.label_smoothing else None,
        metrics={"accuracy": accuracy},
        classes=data.classes,
    )


def image_data(config: TrainConfig, data_dir: Path) -> ImageData:
    if config.data == "synthetic":
        return synthetic_images(config, SyntheticImages)
    return read_images(config, data_dir, StoredImages, AugmentedImages)


class SyntheticImages:
    """Noise around one pattern per class: learnable, without files, and the same in every process."""

    def __init__(self, samples: int, classes: int, pixels: int, split: str) -> None:
        self._samples = samples
        shape = (classes, pixels, pixels, 3)
        self._patterns = tf.constant(np.random.default_rng(0).normal(size=shape), tf.float32)
        noise = np.random.default_rng(sum(split.encode())).normal(size=2 * pixels * pixels * 3)
        self._noise = tf.constant(noise, tf.float32)

    def __len__(self) -> int:
        return self._samples

    def load(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        label = tf.cast(index, tf.int32) % self._patterns.shape[0]
        pattern = tf.gather(self._patterns, label)
        # Drawing new noise for each sample would take longer than a step of a small model.
        start = tf.random.stateless_uniform([], [0, tf.cast(index, tf.int32)], 0, tf.size(pattern), tf.int32)
        noise = tf.slice(self._noise, [start], [tf.size(pattern)])
        return pattern + tf.reshape(noise, tf.shape(pattern)), label
