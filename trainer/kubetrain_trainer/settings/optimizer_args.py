"""The options of each optimizer, which the setting `optimizer_args` holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kubetrain_trainer.settings.base import Settings, setting


@dataclass(frozen=True)
class OptimizerArgs(Settings):
    GROUP: ClassVar[str] = "train.optimizer_args"

    decay_norms: bool = setting(
        True, "whether weight decay also applies to biases and normalization, which are parameters of one dimension"
    )


@dataclass(frozen=True)
class Sgd(OptimizerArgs):
    momentum: float = setting(0.9, "momentum", minimum=0, maximum=0.999999)
    nesterov: bool = setting(False, "whether to use Nesterov momentum")


@dataclass(frozen=True)
class AdamW(OptimizerArgs):
    beta1: float = setting(0.9, "decay of the average of gradients", minimum=0, maximum=0.999999)
    beta2: float = setting(0.999, "decay of the average of their squares", minimum=0, maximum=0.999999)
    epsilon: float = setting(
        0.0,
        "number added to the denominator (TensorFlow: before the correction of its bias); 0: 1e-8 (TensorFlow 1e-7)",
        minimum=0,
    )


OPTIMIZERS: Mapping[str, Any] = {"sgd": Sgd, "adamw": AdamW}
