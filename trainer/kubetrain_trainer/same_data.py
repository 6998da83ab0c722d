"""A check that all processes read the same samples, because each takes its share of what it has listed itself."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from kubetrain_trainer.derived_seed import derived_seed
from kubetrain_trainer.differing import difference
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.process_group import ProcessGroup

Draw = Callable[[list[int]], Iterable[float]]
"""Draws the training samples with these indices twice, and returns the mean of each batch."""
DRAWN = 8
TOLERANCE = 1e-3
"""How much these means may differ, as a fraction: processors of another kind decode and round otherwise."""


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
        if found := difference(values, group, TOLERANCE * abs(values[0]) if what.startswith("mean") else 0.0):
            raise KubetrainError(
                f"the {what} is {found}: each process trains with its share of the same list, so list all samples in "
                "each of them, in sorted order, and compare the files that these nodes see"
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
