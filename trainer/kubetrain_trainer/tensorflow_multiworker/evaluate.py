"""Evaluate the exported model on the test split.

python -m kubetrain_trainer.tensorflow_multiworker.evaluate --data-dir DATA --output-dir OUTPUT
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice, tee
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from kubetrain_trainer.data.dataset_files import check_dataset
from kubetrain_trainer.data.image_folder import log_notes
from kubetrain_trainer.data.sample_order import batches_of
from kubetrain_trainer.data.sampling import evaluation_indices
from kubetrain_trainer.models.evaluation_record import ClassPredictions, write_evaluation
from kubetrain_trainer.models.latest_model import Metrics, measure_latest
from kubetrain_trainer.output.image_input import with_recorded_input
from kubetrain_trainer.output.model_folder import ModelFolder
from kubetrain_trainer.processes.entry_point import Arguments, evaluation_arguments, run
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.reporting.progress_line import format_progress
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.tensorflow_multiworker.checkpoint import load_export, load_weights
from kubetrain_trainer.tensorflow_multiworker.group import Group, build_strategy, prepare_devices
from kubetrain_trainer.tensorflow_multiworker.loading import check_samples, load, preparation
from kubetrain_trainer.tensorflow_multiworker.measures import Predicted, Tally
from kubetrain_trainer.tensorflow_multiworker.precision import forward, use_precision
from kubetrain_trainer.tensorflow_multiworker.task import KerasTask, build_task
from kubetrain_trainer.tensorflow_multiworker.training import Training


def evaluate(arguments: Arguments) -> None:
    """Evaluate the exported model and write evaluation.json."""
    check_dataset(arguments)
    config = arguments.config
    role = ProcessRole()
    prepare_devices(config, role)
    use_precision(config)
    group = Group(role, build_strategy(config, role))
    with group.strategy.scope():
        task = build_task(config, arguments.data_dir)
    export = load_export(arguments.output, task.model)
    samples = task.data(config.test_split)
    log_notes(samples)
    tally, predicted = measure(task, samples, config, group)
    measured = tally.measured()  # before the latest model is measured, perhaps by the same objects
    latest = measure_latest(arguments, task.classes, partial(measure_published, arguments.data_dir, group))
    write_evaluation(arguments, export, samples, measured, predicted, latest)


def measure_published(data_dir: Path, group: Group, model: ModelFolder, config: TrainConfig) -> Metrics:
    """Evaluate a published model, which was trained with these settings, on this dataset."""
    sized = with_recorded_input(config, model.description)
    use_precision(sized)
    with group.strategy.scope():
        task = build_task(sized, data_dir)
    load_weights(model.path, model.description["files"], task.model)
    return measure(task, task.data(sized.test_split), sized, group)[0].results()


def measure(task: KerasTask, samples: Any, config: TrainConfig, group: Group) -> tuple[Tally, ClassPredictions]:
    check_samples(samples)
    tally, predicted = new_tally(task, samples, config, group), ClassPredictions(task.classes)
    for batches in predictions(task, samples, range(len(samples)), config, group):
        tally.add(batches)
        if task.classes:
            for outputs, targets, _ in batches:
                predicted.add(targets.numpy().tolist(), *top_classes(outputs))
        print(format_progress(samples=f"{tally.samples}/{len(samples)}"), flush=True)
    return tally, predicted


def mean_metrics(training: Training, step: int) -> dict[str, float] | None:
    """Evaluate a split on all processes. Return its loss and metrics, or None if interrupted by a stop."""
    config, role, samples = training.config, training.group.role, training.validation
    doing = f"the validation after step {step}"
    training.watchdog.beat(doing)
    tally = new_tally(training.evaluated, samples, config, training.group)
    indices, most = (evaluation_indices(len(samples), rank, role.world_size) for rank in (role.rank, 0))
    predicted = predictions(training.evaluated, samples, indices, config, training.group)
    step_size = config.batch_size * training.group.local_replicas
    for _ in range(0, len(most), step_size):  # equally often in all processes: is_due_now() waits for all
        for batches in islice(predicted, 1):
            tally.add(batches)
        training.watchdog.beat(doing)
        if training.stop.is_due_now():
            return None
    return tally.results(training.group.sum)


def new_tally(task: KerasTask, samples: Any, config: TrainConfig, group: Group) -> Tally:
    """Return a tally whose metrics have their variables, also in a process that will get no samples."""
    tally = Tally(task, group)
    if tally.lacks_variables and len(samples):
        [first], *_ = predictions(task, samples, [0], config, group)
        tally.make_variables([first] * group.local_replicas)
    return tally


def predictions(
    task: KerasTask, samples: Any, indices: Sequence[int], config: TrainConfig, group: Group
) -> Iterator[list[Predicted]]:
    """Yield a batch of each replica of this process at a time, and at the end those that are left."""
    batches, ahead = tee(batches_of(indices, config.batch_size))
    predict_in_replicas = predictor(task.model, preparation(samples), group.strategy)
    # What is loaded comes first: until then, TensorFlow's thread may be computing the batches.
    loaded = zip(load(samples, ahead, task.collate, processes=group.role.world_size), batches, strict=True)
    while step := list(islice(loaded, group.local_replicas)):
        inputs = [inputs for (inputs, _), _ in step]
        # A replica without a batch computes one that is not counted: not every model takes an empty batch.
        inputs += inputs[:1] * (group.local_replicas - len(step))
        outputs = predict_in_replicas(group.distributed_value(inputs))
        pairs = zip(group.local_values(outputs), step, strict=False)
        yield [Predicted(output, targets, len(batch)) for output, ((_, targets), batch) in pairs]


@lru_cache(maxsize=8)
def predictor(model: keras.Model, prepare: Callable[[Any], Any], strategy: tf.distribute.Strategy) -> Any:
    """Return a function that predicts a batch of each replica, and that is traced once for all validations."""

    def predict_prepared(inputs: Any) -> Any:
        return predict(model, prepare(inputs))

    return tf.function(lambda inputs: strategy.run(predict_prepared, args=(inputs,)), reduce_retracing=True)


@tf.function(reduce_retracing=True)
def predict(model: keras.Model, inputs: Any) -> Any:
    return forward(model, inputs, training=False)


def probabilities(outputs: Any) -> Any:
    """Return the probability of each class, from scores of shape (batch, classes)."""
    return tf.nn.softmax(outputs, axis=1)


def top_classes(outputs: Any) -> tuple[list[int], list[float]]:
    """Return the predicted class of each sample and its confidence, from scores of shape (batch, classes)."""
    return tf.argmax(outputs, axis=1).numpy().tolist(), tf.reduce_max(probabilities(outputs), axis=1).numpy().tolist()


if __name__ == "__main__":
    run(lambda: evaluate(evaluation_arguments("Evaluate the exported model on the test split.")))
