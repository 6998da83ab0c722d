"""Judge the exported model on the test split.

python -m kubetrain_trainer.tensorflow_multiworker.evaluate --data-dir DATA --output-dir OUTPUT
"""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.entry_point import Arguments, parse_arguments, run
from kubetrain_trainer.evaluation_record import classification_record
from kubetrain_trainer.process_role import ProcessRole
from kubetrain_trainer.progress_line import format_progress
from kubetrain_trainer.sampling import evaluation_share
from kubetrain_trainer.tensorflow_multiworker.checkpoint import load_export
from kubetrain_trainer.tensorflow_multiworker.data import load
from kubetrain_trainer.tensorflow_multiworker.task import Task, build_task
from kubetrain_trainer.termination import report_result


def evaluate(arguments: Arguments) -> None:
    """Write evaluation.json of the exported model, with the settings that it was trained with."""
    output = arguments.output
    config = output.train_config()
    task = build_task(config, arguments.data_dir)
    export = load_export(output, task.model)
    samples = task.data(config.test_split)
    tally = Tally(task)
    for outputs, targets in predictions(task, samples, range(len(samples)), config):
        tally.add(outputs, targets)
        print(format_progress(samples=f"{tally.samples}/{len(samples)}"), flush=True)
    evaluation = {
        "split": config.test_split,
        "samples": tally.samples,
        "metrics": tally.means(),
        **tally.record(getattr(samples, "picture", lambda index: "")),
        **{name: export[name] for name in ("step", "checkpoint", "manifest_sha256")},
        "dataset_digest": arguments.dataset_digest,
    }
    output.write_evaluation(evaluation)
    report_result({"status": "completed", "samples": tally.samples, "metrics": tally.means()})


def mean_metrics(
    task: Task, samples: Any, config: TrainConfig, role: ProcessRole, strategy: tf.distribute.Strategy
) -> dict[str, float]:
    """Loss and metrics over all samples of a split, each process taking its share."""
    tally = Tally(task)
    share = evaluation_share(len(samples), role.rank, role.world_size)
    for outputs, targets in predictions(task, samples, share, config):
        tally.add(outputs, targets)
    tally.sums = sum_over_processes(tally.sums, role, strategy)
    return tally.means()


def sum_over_processes(values: Any, role: ProcessRole, strategy: tf.distribute.Strategy) -> np.ndarray:
    # Every replica of a process brings the same values: together they count once.
    local_replicas = strategy.num_replicas_in_sync / role.world_size
    replicated = strategy.run(lambda: tf.constant(values / local_replicas))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, replicated, axis=None).numpy()


def predictions(task: Task, samples: Any, indices: Sequence[int], config: TrainConfig) -> Iterator[tuple[Any, Any]]:
    batches = [indices[first : first + config.batch_size] for first in range(0, len(indices), config.batch_size)]
    for inputs, targets in load(samples, batches):
        yield _predict(task.model, inputs), targets


@tf.function(reduce_retracing=True)
def _predict(model: keras.Model, inputs: Any) -> Any:
    return model(inputs, training=False)


class Tally:
    """Sums over samples."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.sums = np.zeros(2 + len(task.metrics))
        self._truths: list[int] = []
        self._scores: list[np.ndarray] = []

    def add(self, outputs: Any, targets: Any) -> None:
        losses = self._task.loss(outputs, targets)
        values = [losses, *(metric(outputs, targets) for metric in self._task.metrics.values())]
        self.sums += [len(losses), *(float(tf.reduce_sum(value)) for value in values)]
        if self._task.classes:
            self._truths.extend(targets.numpy().tolist())
            self._scores.append(tf.nn.softmax(outputs, axis=1).numpy())

    @property
    def samples(self) -> int:
        return int(self.sums[0])

    def means(self) -> dict[str, float]:
        count, *totals = self.sums.tolist()
        return {name: total / count for name, total in zip(["loss", *self._task.metrics], totals, strict=True)}

    def record(self, picture: Any) -> dict[str, Any]:
        if not self._task.classes:
            return {}
        scores = np.concatenate(self._scores)
        predicted, confidences = scores.argmax(axis=1).tolist(), scores.max(axis=1).tolist()
        return classification_record(self._task.classes, self._truths, predicted, confidences, picture)


if __name__ == "__main__":
    run(lambda: evaluate(parse_arguments("Judge the exported model on the test split.")))
