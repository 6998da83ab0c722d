"""The factor of the loss in fp16, in which small gradients would vanish and large ones become infinite.

Each step whose gradient is not finite is skipped and halves the factor, until gradients fit; after many steps in a row
that fit, it is doubled. It is saved with each checkpoint, so that a resumed training takes the same steps.
"""

from collections.abc import Mapping
from typing import Any

from kubetrain_trainer.config import TrainConfig

FIRST = 2.0**16
STEPS_TO_DOUBLE = 2000
NAME = "loss_scale"


class LossScale:
    def __init__(self, config: TrainConfig) -> None:
        self.is_used = config.precision == "fp16"
        self.factor = FIRST if self.is_used else 1.0
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
        return {NAME: {"factor": self.factor, "steps": self._steps}} if self.is_used else {}

    def restore(self, manifest: Mapping[str, Any]) -> None:
        if self.is_used and NAME in manifest:  # not if another run, from which this one starts, had another precision
            self.factor, self._steps = manifest[NAME]["factor"], manifest[NAME]["steps"]
