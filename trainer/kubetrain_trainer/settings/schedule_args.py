"""The options of each learning rate schedule, which the setting `schedule_args` holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kubetrain_trainer.settings.base import Settings, setting


@dataclass(frozen=True)
class ScheduleArgs(Settings):
    GROUP: ClassVar[str] = "train.schedule_args"

    warmup_steps: int = setting(
        0, "steps over which the learning rate rises to its peak; 0: train.warmup_epochs", minimum=0
    )


@dataclass(frozen=True)
class Falling(ScheduleArgs):
    min_rate: float = setting(0.0, "lowest learning rate, as a fraction of the peak", minimum=0, maximum=1)


@dataclass(frozen=True)
class Wsd(Falling):
    decay_share: float = setting(
        0.2, "the last part of the training, in which the learning rate falls", above=0, maximum=1
    )


@dataclass(frozen=True)
class Step(Falling):
    epochs: float = setting(0.0, "epochs between drops; 0: a third of the training", minimum=0)
    factor: float = setting(0.1, "factor of the learning rate at each drop", above=0, maximum=1)


SCHEDULES: Mapping[str, Any] = {
    "cosine": Falling,
    "linear": Falling,
    "wsd": Wsd,
    "step": Step,
    "constant": ScheduleArgs,
}
