"""What the newest steps came to. It stays on the device until it is looked at, lest each step wait for a GPU; nothing
is saved before a look has found nothing but numbers."""

import logging
import math
from collections.abc import Callable
from typing import Any

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.process_group import ProcessGroup

MAX_SKIPPED = 10
"""Steps in a row: after so many, no other batch is going to help."""
REMEDY = (
    "most often the learning_rate is too high for this batch and warm-up, then a sample has NaN in its inputs or "
    "labels, then a loss of one's own takes the logarithm of zero or bears no bf16: lower learning_rate, raise "
    "warmup_epochs, set clip_norm or precision=fp32, or on_nan=skip to leave such steps out"
)
log = logging.getLogger(__name__)


class NotFinite(KubetrainError):
    """A loss or a gradient is NaN or infinite."""


class RecentSteps:
    def __init__(self, config: TrainConfig, group: ProcessGroup, resume_hint: Callable[[], str]) -> None:
        """`resume_hint` is asked in the chief, after a failure."""
        self._skips = config.on_nan == "skip"
        self._group = group
        self._resume_hint = resume_hint
        self._pending: list[tuple[int, float, Any, Any]] = []
        self._losses: list[float] = []
        self._skipped_in_a_row = 0
        self.skipped = 0
        """Steps that changed nothing, since this process began."""

    def accept_step(self, step: int, rate: float, loss: Any, norm: Any) -> bool:
        """Whether this step may change the model, by this process's part of the loss and by the norm of the gradient of
        all. Where the first bad step ends the training each may: what it spoils is never saved.

        Raises:
            NotFinite: where too many steps in a row may not.
        """
        self._pending.append((step, rate, loss, norm))
        bad = self._bad_step() if self._skips else ""
        if not bad:
            self._skipped_in_a_row = 0
            return True
        self.skipped += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row == MAX_SKIPPED:
            raise self._failure(f"{bad}, and so it was in the {MAX_SKIPPED - 1} steps before")
        if self._group.role.is_chief:
            log.warning("skipped a step, which changes nothing: %s (%d skipped so far)", bad, self.skipped)
        return False

    def look(self) -> None:
        """
        Raises:
            NotFinite: naming the first bad step of any process, in all processes alike.
        """
        if bad := self._bad_step():
            raise self._failure(bad)

    def mean_loss(self) -> float:
        """Over all processes, and over the steps since the last call; what was skipped aside.

        Raises:
            NotFinite: as look().
        """
        self.look()
        losses, self._losses = self._losses, []
        return sum(losses) / len(losses) if losses else math.nan

    def _bad_step(self) -> str:
        """What is wrong with the first bad one of the steps since the last look; empty where none is."""
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
            self._losses.append(loss / self._group.role.world_size)
        return ""

    def _describe(self, loss: float, norm: float, *, is_ours: bool) -> str:
        if math.isfinite(loss):
            return f"the gradient is {norm}"
        marks = self._group.gather(float(is_ours))
        return f"the loss of rank {' and '.join(str(rank) for rank, mark in enumerate(marks) if mark)} is {loss}"

    def _failure(self, bad: str) -> NotFinite:
        return NotFinite(f"{bad}: {REMEDY}; {self._group.from_chief(self._resume_hint)}")
