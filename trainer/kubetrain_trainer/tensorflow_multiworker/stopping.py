"""All processes stop after the same step, whichever of them was asked to.

Each step brings, with its loss, how many processes had been asked before it. That is looked at one step later: to look
at once would make every step wait for the host.
"""

from types import TracebackType
from typing import Self

import tensorflow as tf

from kubetrain_trainer.stop_signal import StopSignal


class Stop:
    """As a context for the time of the steps: hears a request to this process, and learns of those to others."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._signal = StopSignal()
        self._strategy = strategy
        self._answers = (tf.zeros(()), tf.ones(()))
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
        """What this process brings to a step: one where it was asked."""
        return self._answers[self._signal.is_asked]

    def note(self, asked: tf.Tensor) -> None:
        """What a step brought: the sum of all requests."""
        self._asked, self._asked_before = asked, self._asked

    def is_due(self) -> bool:
        """Whether all stop after this step; to be asked after each."""
        return float(self._asked_before) > 0  # compared by Python: TensorFlow would take longer

    def is_due_now(self) -> bool:
        """The same between steps, for all processes together."""
        return float(self._count_asked(self.request)) > 0

    def _sum_over_replicas(self, request: tf.Tensor) -> tf.Tensor:
        requests = self._strategy.run(lambda: tf.identity(request))
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, requests, axis=None)
