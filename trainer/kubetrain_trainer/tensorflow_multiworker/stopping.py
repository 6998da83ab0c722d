"""Stop all processes after the same step when any of them receives SIGTERM.

Each step also sums the number of processes that have received it. The host reads this sum one step later, because
reading it immediately would make every step wait for the host.
"""

import tensorflow as tf

from kubetrain_trainer.stop_signal import StopSignal


class Stop(StopSignal):
    """A context manager for the steps that detects SIGTERM in any process."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        super().__init__()
        self._strategy = strategy
        self._zero_and_one = (tf.zeros(()), tf.ones(()))
        self._asked, self._asked_before = tf.zeros(()), tf.zeros(())
        self._count_asked = tf.function(self._sum_over_replicas)

    @property
    def request(self) -> tf.Tensor:
        """The number that this process adds to the sum of a step: 1 if it received SIGTERM, else 0."""
        return self._zero_and_one[self.is_requested]

    def note(self, asked: tf.Tensor) -> None:
        """Keep a step's number of processes that have received SIGTERM."""
        self._asked, self._asked_before = asked, self._asked

    def is_due(self, _step: int) -> bool:
        """Return True if all processes stop after this step. Call it after each step."""
        return float(self._asked_before) > 0  # Python compares faster than TensorFlow

    def is_due_now(self) -> bool:
        """Return True if any process received SIGTERM. Call it in all processes, between steps."""
        return float(self._count_asked(self.request)) > 0

    def _sum_over_replicas(self, request: tf.Tensor) -> tf.Tensor:
        requests = self._strategy.run(lambda: tf.identity(request))
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, requests, axis=None)
