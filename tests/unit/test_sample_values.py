"""Losses and metrics need one value for each sample."""

from types import SimpleNamespace
from typing import Any

import pytest

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.sample_values import check_sample_values


def of_shape(*shape: int) -> Any:
    return SimpleNamespace(shape=shape)


@pytest.mark.parametrize(("shape", "samples"), [((3,), 3), ((3, 1), 3), ((1,), 1), ((), 1)])
def test_one_value_for_each_sample_is_accepted(shape: tuple[int, ...], samples: int) -> None:
    check_sample_values("loss", of_shape(*shape), samples)


@pytest.mark.parametrize(("shape", "samples"), [((), 3), ((3, 8), 3), ((24,), 3), ((1,), 3), ((1, 8), 1)])
def test_other_shapes_are_refused(shape: tuple[int, ...], samples: int) -> None:
    with pytest.raises(KubetrainError, match=rf"a batch of {samples} samples has shape \("):
        check_sample_values("loss", of_shape(*shape), samples)
