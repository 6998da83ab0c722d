"""Checks that all processes train the same.

Each takes its own samples from a list that it has made itself, and what only one of them has learnt would be saved
for all.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kubetrain_trainer.data.sample_order import derived_seed
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.failures import TransientFailure
from kubetrain_trainer.processes.process_group import ProcessGroup
from kubetrain_trainer.processes.resources import node_name

Draw = Callable[[list[int]], Iterable[float]]
"""Draws the training samples with these indices twice, and returns the mean of each batch."""
DRAWN = 8
SAMPLES_TOLERANCE = 1e-3
"""How much these means may differ, as a fraction: CPUs of another kind decode and round otherwise."""
WEIGHTS_TOLERANCE = 1e-4
"""How much weights may differ, as a fraction of a typical one: CPUs of another kind round otherwise."""
Norm = Callable[[bool], tuple[float, int]]
"""Returns the norm of the trained weights that this process holds, more precisely if True, and their number."""


def check_same_data(training: Any, validation: Any, draw: Draw | None, seed: int, group: ProcessGroup) -> None:
    """Check that all processes list the same samples. All of them call this.

    Raises:
        KubetrainError: if one lists others.
    """
    if group.role.world_size == 1:
        return
    own = {
        "number of training samples": _number(training, "__len__"),
        "number of validation samples": _number(validation, "__len__"),
        "checksum of the training files": _number(training, "files_checksum"),
        "checksum of the validation files": _number(validation, "files_checksum"),
        "mean of some training samples": _mean(draw, seed, training) if draw else math.nan,
    }
    for what, values in zip(own, zip(*group.gather_all([*own.values()]), strict=True), strict=True):
        if found := difference(values, group, SAMPLES_TOLERANCE * abs(values[0]) if what.startswith("mean") else 0.0):
            raise KubetrainError(
                f"the {what} is {found}: each process trains with its own samples from the same list, so list all "
                "samples in each of them, in sorted order, and compare the files that these nodes see"
            )


def _number(samples: Any, method: str) -> float:
    return float(getattr(samples, method)()) if hasattr(samples, method) else math.nan


def _mean(draw: Draw, seed: int, training: Any) -> float:
    """Return the mean if it is the same for both draws. What fails is left to the training, which meets it too."""
    try:
        one, other = draw([derived_seed(seed, number) % len(training) for number in range(DRAWN)])
    except Exception:  # noqa: BLE001 - a task's own function may raise any
        return math.nan
    return one if one == other else math.nan


def difference(values: Sequence[float], group: ProcessGroup, tolerance: float = 0.0, stride: int = 1) -> str:
    """Name the process that differs most from the majority, and one of these; return "" if all agree.

    Args:
        values: The value of each process, the same list in all of them; NaN: it cannot be compared.
        stride: The distance of ranks that must agree.
    """
    for first in range(stride):
        known = {rank: values[rank] for rank in range(first, len(values), stride) if not math.isnan(values[rank])}
        if known and max(known.values()) - min(known.values()) > tolerance:
            usual = max(known, key=lambda rank: sum(abs(known[rank] - value) <= tolerance for value in known.values()))
            odd = max(known, key=lambda rank: abs(known[rank] - known[usual]))
            nodes = group.gather_text(node_name())
            return ", and ".join(f"{values[rank]:.10g} in rank {rank} on node {nodes[rank]}" for rank in (odd, usual))
    return ""


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
                "backward() and the optimizer's step(); if it adds up gradients for more steps, raise "
                "train.checkpoint_every"
            )

    def _compare_precisely(self) -> None:
        norms, counts = zip(*self._group.gather_all([*map(float, self._norm(True))]), strict=True)
        tolerance = WEIGHTS_TOLERANCE * max(norms) / math.sqrt(max(counts))
        if found := difference(norms, self._group, tolerance, self._shards):
            differs = f"the weights differ between processes, with a norm of {found}"
            if self._own_step:
                raise KubetrainError(f"{differs}: let the task's own step call step.model, which all-reduces gradients")
            raise TransientFailure(f"{differs}: look for a faulty GPU or faulty memory there")
