"""Mixed precision: models compute in bf16 or fp16; weights, loss and metrics stay in fp32."""

from typing import Any

import keras
import tensorflow as tf

from kubetrain_trainer.processes.resources import AMPERE, has_bf16, with_tf32
from kubetrain_trainer.settings.config import TrainConfig

POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


def use_precision(config: TrainConfig) -> None:
    """Set the precision of all models that are built later."""
    keras.mixed_precision.set_global_policy(POLICIES[precision_of(config)])


def forward(model: keras.Model, inputs: Any, *, training: bool) -> Any:
    """Return the model's outputs, in fp32."""
    return tf.nest.map_structure(_cast_to_fp32, model(inputs, training=training))


def precision_of(config: TrainConfig) -> str:
    """Return fp32, bf16 or fp16: TF32 is how a GPU multiplies what is in fp32."""
    if config.precision != "auto":
        return "fp32" if config.precision == "tf32" else config.precision
    capability = _least_capability()
    return "bf16" if (has_bf16() if capability is None else capability >= AMPERE) else "fp32"


def describe_precision(config: TrainConfig) -> str:
    return with_tf32(precision_of(config), config, _least_capability() or (0, 0))


def _least_capability() -> tuple[int, int] | None:
    """Return that of the GPU that can do least, or None without GPUs."""
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return min((gpu.get("compute_capability", (0, 0)) for gpu in details), default=None)


def _cast_to_fp32(value: Any) -> Any:
    return tf.cast(value, tf.float32) if value.dtype in (tf.bfloat16, tf.float16) else value
