"""The settings of a training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kubetrain_trainer.settings.base import Settings
from kubetrain_trainer.settings.config_checks import check_together
from kubetrain_trainer.settings.data_settings import DataSettings, ImageSettings, TaskSettings
from kubetrain_trainer.settings.entry import parse_entry
from kubetrain_trainer.settings.learning_settings import LearningSettings, StartSettings, StepSettings
from kubetrain_trainer.settings.running_settings import CheckpointSettings, ObservingSettings, SpeedSettings

GROUPS: dict[str, type[Settings]] = {
    "Task": TaskSettings,
    "Data": DataSettings,
    "Images of built-in models": ImageSettings,
    "Steps and batches": StepSettings,
    "Optimizer and learning rate": LearningSettings,
    "Fine-tuning": StartSettings,
    "Checkpoints and the model": CheckpointSettings,
    "Speed and memory": SpeedSettings,
    "Observing": ObservingSettings,
}
"""The groups of settings by their headings in docs/settings.md."""


@dataclass(frozen=True)
class TrainConfig(
    ObservingSettings,  # the groups in reverse, because the fields of a dataclass begin with those of its last base
    SpeedSettings,
    CheckpointSettings,
    StartSettings,
    LearningSettings,
    StepSettings,
    ImageSettings,
    DataSettings,
    TaskSettings,
):
    """All settings of a training, by group."""

    GROUP: ClassVar[str] = "train"

    def __post_init__(self) -> None:
        super().__post_init__()
        if parse_entry(self.entry):  # it exports what it chooses, when it ends
            object.__setattr__(self, "select_checkpoint", "last")
        for name in ("synthetic_data", "augmentation", "optimizing", "scheduling"):
            getattr(self, name)  # what an object holds is checked when it is read first
        check_together(self)

    @property
    def exports_safetensors(self) -> bool:
        if self.weights_format == "auto":
            return self.sharding != "none"
        return self.weights_format == "safetensors"

    @property
    def skips_steps(self) -> bool:
        """Return True if a step whose loss or gradient is not finite is skipped, for which it has to be awaited."""
        return self.on_nan == "skip" or self.precision == "fp16"
