"""Stop all processes after the same step when any of them receives SIGTERM.

Each step sums up, besides its loss, how many processes had received it. The host reads this sum one step later: reading
it immediately would make every step wait for the host.
"""

from types import TracebackType
from typing import Self

import tensorflow as tf

from kubetrain_trainer.stop_signal import StopSignal


class Stop:
    """A context around the steps that catches SIGTERM in this process and learns of it from other processes."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._signal = StopSignal()
        self._strategy = strategy
        self._zero_and_one = (tf.zeros(()), tf.ones(()))
        self._asked, self._asked_before = tf.zeros(()), tf.zeros(())
        self._count_asked = tf.function(self._sum_over_replicas)

    def __enter__(self) -> Self:
        self._signal.__enter__()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signal.__exit__(error_type, error, trace)

    @property
    def request(self) -> tf.Tensor:
        """The number that this process adds to the sum of a step: 1 if it received SIGTERM, else 0."""
        return self._zero_and_one[self._signal.is_requested]

    def note(self, asked: tf.Tensor) -> None:
        """Keep the sum of a step: how many processes had received SIGTERM."""
        self._asked, self._asked_before = asked, self._asked

    def is_due(self) -> bool:
        """Return True if all processes stop after this step. Call it after each step."""
        return float(self._asked_before) > 0  # Python compares faster than TensorFlow

    def is_due_now(self) -> bool:
        """Return True if any process received SIGTERM; between steps, called by all processes together."""
        return float(self._count_asked(self.request)) > 0

    def _sum_over_replicas(self, request: tf.Tensor) -> tf.Tensor:
        requests = self._strategy.run(lambda: tf.identity(request))
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, requests, axis=None)
