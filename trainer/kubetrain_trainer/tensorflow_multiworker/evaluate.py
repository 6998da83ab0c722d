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
from kubetrain_trainer.sampling import evaluation_indices
from kubetrain_trainer.tensorflow_multiworker.checkpoint import EXPORT_FILE, load_export, load_weights
from kubetrain_trainer.tensorflow_multiworker.group import prepare_devices
from kubetrain_trainer.tensorflow_multiworker.loading import load
from kubetrain_trainer.tensorflow_multiworker.measures import Tally
from kubetrain_trainer.tensorflow_multiworker.precision import forward, use_precision
from kubetrain_trainer.tensorflow_multiworker.task import Task, build_task
from kubetrain_trainer.tensorflow_multiworker.training import Training


def evaluate(arguments: Arguments) -> None:
    """Evaluate the exported model and write evaluation.json."""
    check_no_file_is_lost(arguments.data_dir, arguments.dataset_files)
    config = arguments.config
    prepare_devices(config, ProcessRole())
    use_precision(config)
    task = build_task(config, arguments.data_dir)
    export = load_export(arguments.output, task.model)
    samples = task.data(config.test_split)
    log_notes(samples)
    tally, predicted = measure(task, samples, config)
    measured = tally.measured()  # before the latest model is measured, perhaps by the same objects
    latest = measure_latest(arguments, task.classes, partial(measure_published, arguments.data_dir))
    write_evaluation(arguments, export, samples, measured, predicted, latest)


def measure_published(data_dir: Path, model: ModelFolder, config: TrainConfig) -> Metrics:
    """Evaluate a published model, which was trained with these settings, on this dataset."""
    sized = with_recorded_input(config, model.description)
    task = build_task(sized, data_dir)
    load_weights(model.path / EXPORT_FILE, task.model)
    return measure(task, task.data(sized.test_split), sized)[0].results()


def measure(task: Task, samples: Any, config: TrainConfig) -> tuple[Tally, ClassPredictions]:
    tally, predicted = Tally(task), ClassPredictions(task.classes)
    for outputs, targets, count in predictions(task, samples, range(len(samples)), config):
        tally.add(outputs, targets, count)
        if task.classes:
            predicted.add(targets.numpy().tolist(), *top_classes(outputs))
        print(format_progress(samples=f"{tally.samples}/{len(samples)}"), flush=True)
    return tally, predicted


def mean_metrics(training: Training, step: int) -> dict[str, float] | None:
    """Evaluate a split, a part in each process, and return its loss and metrics, or None if interrupted by a stop."""
    config, role, samples = training.config, training.group.role, training.validation
    tally, doing = Tally(training.evaluated, training.group), f"the validation after step {step}"
    training.watchdog.beat(doing)
    indices, most = (evaluation_indices(len(samples), rank, role.world_size) for rank in (role.rank, 0))
    predicted = predictions(training.evaluated, samples, indices, config)
    for _ in range(0, len(most), config.batch_size):  # equally often in all processes: is_due_now() waits for all
        for outputs, targets, count in islice(predicted, 1):
            tally.add(outputs, targets, count)
        training.watchdog.beat(doing)
        if training.stop.is_due_now():
            return None
    return tally.results(training.group.sum)


def predictions(
    task: Task, samples: Any, indices: Sequence[int], config: TrainConfig
) -> Iterator[tuple[Any, Any, int]]:
    """Yield the outputs and targets of each batch, and the number of its samples."""
    batches = [indices[first : first + config.batch_size] for first in range(0, len(indices), config.batch_size)]
    for batch, (inputs, targets) in zip(batches, load(samples, batches, task.collate), strict=True):
        yield predict(task.model, inputs), targets, len(batch)


@tf.function(reduce_retracing=True)
def predict(model: keras.Model, inputs: Any) -> Any:
    return forward(model, inputs, training=False)


def probabilities(outputs: Any) -> Any:
    """Return the probability of each class, from scores of shape (batch, classes)."""
    return tf.nn.softmax(outputs, axis=1)


def top_classes(outputs: Any) -> tuple[list[int], list[float]]:
    """Return the predicted class of each sample and its confidence, from scores of shape (batch, classes)."""
    scores = probabilities(outputs).numpy()
    return scores.argmax(axis=1).tolist(), scores.max(axis=1).tolist()


if __name__ == "__main__":
    run(lambda: evaluate(evaluation_arguments("Evaluate the exported model on the test split.")))
