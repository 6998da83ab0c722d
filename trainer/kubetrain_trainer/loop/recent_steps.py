"""Losses and gradient norms of recent steps, and detection of NaN and infinity.

The values stay on the device until they are checked, so that steps need not wait for a GPU. They are always checked
before a checkpoint is saved.
"""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.processes.process_group import ProcessGroup
from kubetrain_trainer.settings.config import TrainConfig

FIRST_FACTOR = 2.0**16
STEPS_TO_DOUBLE = 2000
LOSS_SCALE = "loss_scale"
MAX_SKIPPED = 10
"""The number of skipped steps in a row after which the training fails."""
REMEDY = (
    "most often the learning rate is too high for this batch size and warmup, sometimes a sample has NaN in its inputs "
    "or labels, or a custom loss takes the logarithm of zero or does not support bf16: lower train.learning_rate, "
    "raise train.warmup_epochs, set train.clip_norm or train.precision=fp32, or set train.on_nan=skip to skip such "
    "steps"
)
log = logging.getLogger(__name__)


class LossScale:
    """The factor of the loss in fp16, in which small gradients would vanish and large ones become infinite.

    Each step whose gradient is not finite is skipped and halves the factor, until gradients fit; after many steps in a
    row that fit, it is doubled. It is saved with each checkpoint, so that a resumed training takes the same steps.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.is_used = config.precision == "fp16"
        self.factor = FIRST_FACTOR if self.is_used else 1.0
        self._steps = 0

    def scaled(self, loss: Any) -> Any:
        return loss * self.factor if self.is_used else loss

    def update(self, *, is_taken: bool) -> None:
        """Choose the factor of the next step, by whether the gradient of this one was finite."""
        if not self.is_used:
            return
        self._steps = self._steps + 1 if is_taken else 0
        if not is_taken:
            self.factor /= 2
        elif self._steps == STEPS_TO_DOUBLE:
            self.factor, self._steps = self.factor * 2, 0

    def details(self) -> dict[str, Any]:
        """Return what a checkpoint's manifest says of it."""
        return {LOSS_SCALE: {"factor": self.factor, "steps": self._steps}} if self.is_used else {}

    def restore(self, manifest: Mapping[str, Any]) -> None:
        # It is missing if another run, from which this one starts, had another precision.
        if self.is_used and LOSS_SCALE in manifest:
            self.factor, self._steps = manifest[LOSS_SCALE]["factor"], manifest[LOSS_SCALE]["steps"]


class NotFinite(KubetrainError):
    """A loss or a gradient is NaN or infinite."""


class RecentSteps:
    def __init__(self, config: TrainConfig, group: ProcessGroup, resume_hint: Callable[[], str]) -> None:
        """`resume_hint` is called in rank 0 after a failure."""
        self._skips = config.skips_steps
        self.loss_scale = LossScale(config)
        self._group = group
        self._resume_hint = resume_hint
        self._pending: list[tuple[int, float, Any, Any]] = []
        self._finite: list[tuple[float, float]] = []
        self._skipped_in_a_row = 0
        self.skipped = 0
        """Number of steps skipped since this process started."""

    def accept_step(self, step: int, rate: float, loss: Any, norm: Any) -> bool:
        """Return True if this step may update the model. Unless steps are skipped that is always the case, because the
        next check fails before anything is saved.

        Args:
            loss: This process's part of the loss.
            norm: The norm of the gradient over all processes.

        Raises:
            NotFinite: if too many steps in a row were skipped.
        """
        self._pending.append((step, rate, loss, norm))
        bad = self._bad_step() if self._skips else ""
        self.loss_scale.update(is_taken=not bad)
        if not bad:
            self._skipped_in_a_row = 0
            return True
        self.skipped += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row == MAX_SKIPPED:
            raise self._failure(f"{bad}, and the {MAX_SKIPPED - 1} steps before it were not finite either")
        if self._group.role.is_rank_0:
            scaled = f"; the loss is now scaled by {self.loss_scale.factor:g}" if self.loss_scale.is_used else ""
            log.warning("skipped a step: %s (%d skipped so far)%s", bad, self.skipped, scaled)
        return False

    def check(self) -> None:
        """Check the steps since the last check.

        Raises:
            NotFinite: in all processes, if a step of any process was not finite.
        """
        if bad := self._bad_step():
            raise self._failure(bad)

    def check_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Check the loss of a validation, also with on_nan=skip: the weights that gave it are not worth saving.

        Raises:
            NotFinite: in all processes, if it is not finite.
        """
        if not math.isfinite(metrics["loss"]):
            raise self._failure(f"the validation loss is {metrics['loss']} after step {step}, and nothing was saved")

    def means(self) -> dict[str, float]:
        """Return the means over all processes and all steps since the last call, without skipped steps.

        Raises:
            NotFinite: like check().
        """
        self.check()
        finite, self._finite = self._finite, []
        means = [sum(values) / len(finite) for values in zip(*finite, strict=True)] or [math.nan] * 2
        return dict(zip(("loss", "gradient_norm"), means, strict=True))

    def _bad_step(self) -> str:
        """Describe the first step since the last check that was not finite, or return an empty string."""
        pending, self._pending = self._pending, []
        if not pending:
            return ""
        steps, rates, losses, norms = zip(*pending, strict=True)
        ours = self._group.read_numbers([*losses, *norms])
        totals = self._group.sum(ours)
        for index, step in enumerate(steps):
            loss, norm = totals[index], totals[index + len(steps)]
            if not math.isfinite(loss + norm):
                what = self._describe(loss, norm, is_ours=not math.isfinite(ours[index]))
                return f"{what} at step {step}, with a learning rate of {rates[index]:.3g}"
            self._finite.append((loss / self._group.role.world_size, norm / self._group.role.world_size))
        return ""

    def _describe(self, loss: float, norm: float, *, is_ours: bool) -> str:
        if math.isfinite(loss):
            return f"the gradient is {norm}"
        marks = self._group.gather(float(is_ours))
        return f"the loss of rank {' and '.join(str(rank) for rank, mark in enumerate(marks) if mark)} is {loss}"

    def _failure(self, bad: str) -> NotFinite:
        return NotFinite(f"{bad}: {REMEDY}; {self._group.from_rank_0(self._resume_hint)}")
