"""Losses and metrics need one value for each sample."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.models.measures import check_alone, check_sample_values


def of_shape(*shape: int) -> Any:
    return SimpleNamespace(shape=shape)


@pytest.mark.parametrize(("shape", "samples"), [((3,), 3), ((3, 1), 3), ((1,), 1), ((), 1)])
def test_one_value_for_each_sample_is_accepted(shape: tuple[int, ...], samples: int) -> None:
    check_sample_values("loss", of_shape(*shape), samples)


@pytest.mark.parametrize(("shape", "samples"), [((), 3), ((3, 8), 3), ((24,), 3), ((1,), 3), ((1, 8), 1)])
def test_other_shapes_are_refused(shape: tuple[int, ...], samples: int) -> None:
    with pytest.raises(KubetrainError, match=rf"a batch of {samples} samples has shape \("):
        check_sample_values("loss", of_shape(*shape), samples)


def test_a_loss_that_depends_on_other_samples_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    def loss(outputs: Any, targets: Any) -> Any:
        return ((outputs - targets) ** 2).mean(1)

    outputs, targets = np.arange(4.0)[:, None], np.arange(4.0)
    for right_targets, warnings in ((targets[:, None], 0), (targets, 1), (targets, 1)):
        together = loss(outputs, right_targets)
        check_alone(loss, together, lambda given=right_targets: (outputs[:1], given[:1]))
        assert caplog.text.count("the loss of a sample depends on the others of its batch") == warnings
    check_alone(lambda outputs, targets: outputs[7], targets, lambda: (outputs[:1], targets[:1]))  # takes no single one
