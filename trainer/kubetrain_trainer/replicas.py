"""A check that all processes train the same model: what only one of them has learnt would be saved for all."""

import math
from collections.abc import Callable

from kubetrain_trainer.differing import difference
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.failures import TransientFailure
from kubetrain_trainer.process_group import ProcessGroup

TOLERANCE = 1e-4
"""How much weights may differ, as a fraction of a typical one: processors of another kind round otherwise."""
Norm = Callable[[bool], tuple[float, int]]
"""Returns the norm of the trained weights that this process holds, more precisely if True, and their number."""


class Replicas:
    def __init__(self, group: ProcessGroup, norm: Norm, shards: int = 1, *, own_step: bool = False) -> None:
        """
        Args:
            shards: The number of processes that hold one copy of the weights together.
        """
        self._group, self._norm, self._shards, self._own_step = group, norm, shards, own_step
        self._norms: list[float] = []

    def check(self, first_steps: int = 0) -> None:
        """Check that all copies are the same. All processes call this.

        Args:
            first_steps: The number of steps since the last check, if they are the first ones of the training.

        Raises:
            KubetrainError: if they differ, or the task's own step has changed nothing.
        """
        if self._group.role.world_size == 1 and not self._own_step:
            return
        before, self._norms = self._norms, self._group.gather(self._norm(False)[0])
        if any(len({*self._norms[first :: self._shards]}) > 1 for first in range(self._shards)):
            self._compare_precisely()
        if first_steps and self._own_step and before == self._norms:
            raise KubetrainError(
                f"the task's own step has not changed the model in {first_steps} steps: call step.update(loss), or "
                "backward() and the optimizer's step(); if it adds up gradients for more steps, raise checkpoint_every"
            )

    def _compare_precisely(self) -> None:
        norms, counts = zip(*self._group.gather_all([*map(float, self._norm(True))]), strict=True)
        tolerance = TOLERANCE * max(norms) / math.sqrt(max(counts))
        if found := difference(norms, self._group, tolerance, self._shards):
            differs = f"the weights differ between processes, with a norm of {found}"
            if self._own_step:
                raise KubetrainError(f"{differs}: let the task's own step call step.model, which exchanges gradients")
            raise TransientFailure(f"{differs}: look for a faulty GPU or faulty memory there")
