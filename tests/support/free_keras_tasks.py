"""A Keras task with an optimizer, a schedule, a sampler, batches and metrics of its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kubetrain_trainer import KerasTask
from kubetrain_trainer.settings.config import TrainConfig

SAMPLES = 45


class Texts:
    """Sequences of different lengths; the second half of them is class 1."""

    def __init__(self, split: str) -> None:
        self.size = {"train": SAMPLES, "single": 1}.get(split, 33)

    def __len__(self) -> int:
        return self.size

    def load(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        label = tf.cast(2 * index >= self.size, tf.int64)
        return tf.range(1, 2 + index % 7) + 10 * label, label


def padded(samples: tf.data.Dataset, size: int) -> tf.data.Dataset:
    return samples.padded_batch(size)


def half_of_the_samples(epoch: int) -> np.ndarray:
    return np.random.default_rng(epoch).permutation(SAMPLES)[:22]


def cross_entropy(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=outputs)


class ByClass:
    """Makes a metric of probabilities one of scores and classes."""

    def update_state(self, targets: tf.Tensor, outputs: tf.Tensor, sample_weight: Any = None) -> None:
        super().update_state(tf.one_hot(targets, 2), tf.nn.softmax(outputs))  # type: ignore[misc]


class F1(ByClass, keras.metrics.F1Score):
    pass


class Auc(ByClass, keras.metrics.AUC):
    pass


class Perplexity(keras.metrics.Mean):
    def update_state(self, targets: tf.Tensor, outputs: tf.Tensor, sample_weight: Any = None) -> None:
        super().update_state(cross_entropy(outputs, targets))

    def result(self) -> tf.Tensor:
        return tf.exp(super().result())


class Found(keras.metrics.Sum):
    """The number of samples of class 1 that are recognized: unlike a mean, it shows if samples are counted twice."""

    def update_state(self, targets: tf.Tensor, outputs: tf.Tensor, sample_weight: Any = None) -> None:
        super().update_state(targets * tf.argmax(outputs, 1))


def build(config: TrainConfig, data_dir: Path) -> KerasTask:
    words = [keras.Input((None,), dtype="int64"), keras.layers.Embedding(32, 8, mask_zero=True)]
    return KerasTask(
        model=keras.Sequential([*words, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2)]),
        data=Texts,
        collate=padded,
        sampler=half_of_the_samples,
        loss=cross_entropy,
        metrics={
            "f1": F1(average="macro"),
            "auc": Auc(),
            "perplexity": Perplexity(),
            "found": Found(),
            "accuracy": lambda outputs, targets: tf.cast(tf.argmax(outputs, 1) == targets, tf.float32),
        },
        optimizer=lambda model: keras.optimizers.AdamW(learning_rate=0.02, weight_decay=0.01),
        schedule=lambda step: 1 / step,
    )


def build_with_a_short_epoch(config: TrainConfig, data_dir: Path) -> KerasTask:
    """The third epoch has fewer samples, which is an error."""
    return replace(
        build(config, data_dir), sampler=lambda epoch: half_of_the_samples(epoch)[: 10 if epoch == 2 else None]
    )
