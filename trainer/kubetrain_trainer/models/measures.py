"""Losses and metrics, which have one value for each sample, and the confidence intervals of their means.

A wrong shape would train silently.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from kubetrain_trainer.errors import KubetrainError

Measure = Callable[[Any, Any], Any]
"""A loss or metric of a batch, from its outputs and targets."""
REMEDY = (
    'return one value for each sample, without a mean over the batch (reduction="none"), and average its other '
    "dimensions (PyTorch: .mean(1), TensorFlow: tf.reduce_mean(..., axis=1))"
)
Interval = tuple[float, float]
DEVIATIONS = 1.959964
"""Standard deviations on both sides of the mean that hold 95% of a normal distribution."""
log = logging.getLogger(__name__)


def check_sample_values(what: str, values: Any, samples: int) -> None:
    """Check the shape of the values of a batch. It takes a microsecond, and does not wait for a GPU.

    Raises:
        KubetrainError: if it is not (samples,), with further dimensions of size 1 at most.
    """
    shape = tuple(getattr(values, "shape", ()))
    is_only_one = samples == 1 and not shape  # squeeze() makes this of a last batch of one sample
    if not is_only_one and not (shape and shape[0] == samples and all(size == 1 for size in shape[1:])):
        raise KubetrainError(f"the {what} of a batch of {samples} samples has shape {_text(shape)}: {REMEDY}")


def measure_samples(measures: Mapping[str, Measure], outputs: Any, targets: Any, samples: int) -> list[Any]:
    """Return the values of each measure for a validation batch.

    Raises:
        KubetrainError: if a measure does not have one value for each sample.
    """
    values = {name: measure(outputs, targets) for name, measure in measures.items()}
    for name, value in values.items():
        check_sample_values(f"validation {name}", value, samples)
    return [*values.values()]


def check_alone(loss: Measure, together: Any, alone: Callable[[], tuple[Any, Any]]) -> None:
    """Warn if the loss of a batch's first sample depends on the others, as a wrong broadcast lets it.

    In a sorted split only some batches can show it.

    Args:
        together: The losses of the batch.
        alone: Returns the outputs and targets of the first sample.
    """
    with contextlib.suppress(Exception):  # a task's own function may not take a single sample
        if not math.isclose(float(loss(*alone())[0]), float(together[0]), rel_tol=0.01, abs_tol=1e-5):
            _warn_of_dependence(loss)


@lru_cache(maxsize=8)
def _warn_of_dependence(loss: Measure) -> None:
    """Warn once."""
    log.warning(
        "the loss of a sample depends on the others of its batch: unless it is meant to, as in contrastive learning, "
        "give its outputs and targets the same shape, because (batch, 1) and (batch,) broadcast to (batch, batch)"
    )


def _text(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})" if shape else "() (a single value)"


def confidence_intervals(names: Collection[str], sums: Sequence[float]) -> dict[str, Interval]:
    """Return the intervals of means, from the number of values, the sums of each, and those of their squares."""
    count, *totals = sums
    pairs = zip(totals, totals[len(names) :], strict=False)
    return {name: confidence_interval(int(count), *pair) for name, pair in zip(names, pairs, strict=True)}


def confidence_interval(count: int, total: float, squares: float) -> Interval:
    """Return the 95% confidence interval of a mean, from the number of values, their sum and that of their squares.

    Where each value is 0 or 1, as of an accuracy, it is Wilson's, which holds for few samples and few errors too.
    """
    mean, spread = total / count, DEVIATIONS**2 / count
    if abs(squares - total) <= 1e-9 * count and 0 <= mean <= 1:
        center = mean + spread / 2
        margin = math.sqrt(mean * (1 - mean) * spread + spread**2 / 4)
        return (center - margin) / (1 + spread), (center + margin) / (1 + spread)
    if count < 2:
        return math.nan, math.nan
    variance = max(squares / count - mean * mean, 0) * count / (count - 1)
    margin = math.sqrt(variance * spread)
    return mean - margin, mean + margin
