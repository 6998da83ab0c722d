"""The loss and metrics of a split: means over its samples, and metrics that need the whole split."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.models.evaluation_record import Measured, check_outputs, check_targets
from kubetrain_trainer.models.measures import check_alone, confidence_intervals, measure_samples
from kubetrain_trainer.tensorflow_multiworker.group import Group
from kubetrain_trainer.tensorflow_multiworker.task import KerasTask

SumOverProcesses = Callable[[list[float]], list[float]]


class Predicted(NamedTuple):
    """A batch that a replica has evaluated, on the replica's device."""

    outputs: Any
    targets: Any
    samples: int


class Tally:
    """Sums over samples, kept on the device until they are read, and the metrics that count for themselves."""

    def __init__(self, task: KerasTask, group: Group) -> None:
        """The group has the strategy that made the variables of the metrics."""
        self._names, self._classes = ["loss", *task.metrics], task.classes
        self._group = group
        self._metrics = {name: metric for name, metric in task.metrics.items() if isinstance(metric, keras.Metric)}
        self._measures = {
            "loss": task.loss,
            **{name: metric for name, metric in task.metrics.items() if name not in self._metrics},
        }
        self._sums = tf.zeros(1 + 2 * len(self._measures), tf.float64)
        """The number of samples, the sum of each measure's values, and that of their squares."""
        for metric in self._metrics.values():
            metric.reset_state()

    @property
    def lacks_variables(self) -> bool:
        """True if a metric makes its variables when it sees a batch, which all replicas must do together."""
        return any(not metric.variables for metric in self._metrics.values())

    def make_variables(self, batches: Sequence[Predicted]) -> None:
        """
        Args:
            batches: A batch for each replica of this process, which does not count.
        """
        self._group.strategy.run(partial(self._update, batches))
        for metric in self._metrics.values():
            metric.reset_state()

    def add(self, batches: Sequence[Predicted]) -> None:
        """Add a batch of each replica of this process. At the end of a split they may be fewer than the replicas."""
        for batch in batches:
            check_outputs(self._classes, batch.outputs)
            check_targets(self._classes, batch.targets)
            self._sums += self._sums_of(batch)
        if self._metrics:
            self._group.strategy.run(partial(self._update, batches))

    def _sums_of(self, batch: Predicted) -> tf.Tensor:
        with tf.device(tf.nest.flatten(batch.outputs, expand_composites=True)[0].device):
            values = [tf.cast(value, tf.float64) for value in measure_samples(self._measures, *batch)]
            check_alone(self._measures["loss"], values[0], lambda: first_sample(batch))
            totals = map(tf.reduce_sum, [*values, *map(tf.square, values)])
            return tf.stack([tf.constant(batch.samples, tf.float64), *totals])

    def _update(self, batches: Sequence[Predicted]) -> None:
        """Let the replica that runs this add its batch, if it has one, to its part of the metrics' variables."""
        replica = self._group.local_replica
        for outputs, targets, _ in batches[replica : replica + 1]:
            for metric in self._metrics.values():
                metric.update_state(targets, outputs)

    @property
    def samples(self) -> int:
        return int(self._sums[0])

    def results(self, total: SumOverProcesses = list) -> dict[str, float]:
        """Return the value of each measure over all processes, which call this together."""
        count, *sums = total(list(map(float, self._sums)))
        if not count:
            raise KubetrainError("the split to evaluate has no samples: check its files and data.validation_split")
        means = {name: value / count for name, value in zip(self._measures, sums, strict=False)}
        # The strategy adds up their variables when they are read.
        results = means | {name: _result(name, metric) for name, metric in self._metrics.items()}
        return {name: results[name] for name in self._names}

    def measured(self) -> Measured:
        """Return what evaluation.json says of the samples of this process."""
        return Measured(self.samples, self.results(), confidence_intervals(self._measures, [*map(float, self._sums)]))


def check_metrics(metrics: Mapping[str, Any]) -> None:
    """Check that each metric has one value for each sample or counts over processes.

    Raises:
        KubetrainError: for another object.
    """
    for name, metric in metrics.items():
        if not callable(metric):
            raise KubetrainError(
                f"metric '{name}' is a {type(metric).__name__}: give a function of outputs and targets, or an object "
                "of keras.metrics"
            )


def first_sample(batch: Predicted) -> Any:
    return tf.nest.map_structure(lambda tensor: tensor[:1], (batch.outputs, batch.targets))


def _result(name: str, metric: keras.Metric) -> float:
    value = metric.result()
    if isinstance(value, dict) or tf.size(value) != 1:
        raise KubetrainError(
            f"result() of the metric '{name}' is not a single number: return one, such as the mean over classes"
        )
    return float(value)
