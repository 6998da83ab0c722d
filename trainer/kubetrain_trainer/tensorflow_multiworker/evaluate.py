"""Evaluate the exported model on the test split.

python -m kubetrain_trainer.tensorflow_multiworker.evaluate --data-dir DATA --output-dir OUTPUT
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.dataset_files import check_no_file_is_lost
from kubetrain_trainer.entry_point import Arguments, evaluation_arguments, run
from kubetrain_trainer.evaluation_record import ClassPredictions, write_evaluation
from kubetrain_trainer.image_folder import log_notes
from kubetrain_trainer.image_input import with_recorded_input
from kubetrain_trainer.latest_model import Metrics, measure_latest
from kubetrain_trainer.model_folder import ModelFolder
from kubetrain_trainer.process_role import ProcessRole
from kubetrain_trainer.progress_line import format_progress
from kubetrain_trainer.sample_values import measure_samples
from kubetrain_trainer.sampling import evaluation_indices
from kubetrain_trainer.tensorflow_multiworker.checkpoint import EXPORT_FILE, load_export, load_weights
from kubetrain_trainer.tensorflow_multiworker.data import load
from kubetrain_trainer.tensorflow_multiworker.group import prepare_devices
from kubetrain_trainer.tensorflow_multiworker.precision import forward, use_precision
from kubetrain_trainer.tensorflow_multiworker.task import Task, build_task
from kubetrain_trainer.tensorflow_multiworker.training import Training


def evaluate(arguments: Arguments) -> None:
    """Evaluate the exported model and write evaluation.json."""
    check_no_file_is_lost(arguments.data_dir, arguments.dataset_files)
    config = arguments.config
    prepare_devices(ProcessRole())
    use_precision(config)
    task = build_task(config, arguments.data_dir)
    export = load_export(arguments.output, task.model)
    samples = task.data(config.test_split)
    log_notes(samples)
    metrics, predicted = measure(task, samples, config)
    latest = measure_latest(arguments, task.classes, partial(measure_published, arguments.data_dir))
    write_evaluation(arguments, export, samples, metrics, predicted, latest)


def measure_published(data_dir: Path, model: ModelFolder, config: TrainConfig) -> Metrics:
    """Evaluate a published model, which was trained with these settings, on this dataset."""
    sized = with_recorded_input(config, model.description)
    task = build_task(sized, data_dir)
    load_weights(model.path / EXPORT_FILE, task.model)
    return measure(task, task.data(sized.test_split), sized)[0]


def measure(task: Task, samples: Any, config: TrainConfig) -> tuple[dict[str, float], ClassPredictions]:
    tally, predicted = Tally(task), ClassPredictions(task.classes)
    for outputs, targets in predictions(task, samples, range(len(samples)), config):
        tally.add(outputs, targets)
        if task.classes:
            predicted.add(targets.numpy().tolist(), *top_classes(outputs))
        print(format_progress(samples=f"{tally.samples}/{len(samples)}"), flush=True)
    return tally.means(), predicted


def mean_metrics(training: Training, samples: Any, step: int) -> dict[str, float] | None:
    """Evaluate a split, a part in each process, and return its loss and metrics, or None if interrupted by a stop."""
    config, role = training.config, training.group.role
    tally, doing = Tally(training.evaluated), f"the validation after step {step}"
    training.watchdog.beat(doing)
    indices, most = (evaluation_indices(len(samples), rank, role.world_size) for rank in (role.rank, 0))
    predicted = predictions(training.evaluated, samples, indices, config)
    for _ in range(0, len(most), config.batch_size):  # equally often in all processes: is_due_now() waits for all
        for outputs, targets in islice(predicted, 1):
            tally.add(outputs, targets)
        training.watchdog.beat(doing)
        if training.stop.is_due_now():
            return None
    tally.sums = training.group.sum_array(tally.sums)
    return tally.means()


def predictions(task: Task, samples: Any, indices: Sequence[int], config: TrainConfig) -> Iterator[tuple[Any, Any]]:
    batches = [indices[first : first + config.batch_size] for first in range(0, len(indices), config.batch_size)]
    for inputs, targets in load(samples, batches):
        yield predict(task.model, inputs), targets


@tf.function(reduce_retracing=True)
def predict(model: keras.Model, inputs: Any) -> Any:
    return forward(model, inputs, training=False)


class Tally:
    """Sums over samples, kept on the device until they are read."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.sums = tf.zeros(2 + len(task.metrics), tf.float64)

    def add(self, outputs: Any, targets: Any) -> None:
        samples, values = measure_samples({"loss": self._task.loss, **self._task.metrics}, outputs, targets)
        totals = [tf.reduce_sum(tf.cast(each, tf.float64)) for each in values]
        self.sums += tf.stack([tf.constant(samples, tf.float64), *totals])

    @property
    def samples(self) -> int:
        return int(self.sums[0])

    def means(self) -> dict[str, float]:
        count, *totals = map(float, self.sums)
        return {name: total / count for name, total in zip(["loss", *self._task.metrics], totals, strict=True)}


def probabilities(outputs: Any) -> Any:
    """Return the probability of each class, from scores of shape (batch, classes)."""
    return tf.nn.softmax(outputs, axis=1)


def top_classes(outputs: Any) -> tuple[list[int], list[float]]:
    """Return the predicted class of each sample and its confidence, from scores of shape (batch, classes)."""
    scores = probabilities(outputs).numpy()
    return scores.argmax(axis=1).tolist(), scores.max(axis=1).tolist()


if __name__ == "__main__":
    run(lambda: evaluate(evaluation_arguments("Evaluate the exported model on the test split.")))
