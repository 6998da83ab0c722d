"""The options of generated data, which the setting `synthetic` holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kubetrain_trainer.settings.base import Settings, setting


@dataclass(frozen=True)
class SyntheticData(Settings):
    GROUP: ClassVar[str] = "data.synthetic"

    samples: int = setting(512, "samples in each split", minimum=1)
    classes: int = setting(10, "number of classes", minimum=2)
