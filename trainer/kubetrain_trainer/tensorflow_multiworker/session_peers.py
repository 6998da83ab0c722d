"""How the processes of a TensorFlow script of your own agree: by its strategy."""

from collections.abc import Callable

import tensorflow as tf

from kubetrain_trainer.processes.process_group import Decision
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.tensorflow_multiworker.group import Group
from kubetrain_trainer.tensorflow_multiworker.stopping import Stop


class GroupPeers:
    def __init__(self, role: ProcessRole, strategy: tf.distribute.Strategy) -> None:
        self._group = Group(role, strategy)
        self._strategy = strategy
        self._stop: Stop | None = None

    def from_rank_0(self, decide: Callable[[], Decision]) -> Decision:
        return self._group.from_rank_0(decide)

    def wait(self) -> None:
        self._group.sum([0.0])

    def must_stop(self) -> bool:
        if self._stop is None:
            self._stop = Stop(self._strategy)
            self._stop.__enter__()
        return self._stop.is_due_now()

    def leave(self) -> None:
        if self._stop:
            self._stop.__exit__(None, None, None)
