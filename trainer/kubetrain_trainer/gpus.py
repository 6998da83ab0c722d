"""The capabilities of generations of GPUs."""

from kubetrain_trainer.config import TrainConfig

AMPERE = (8, 0)
"""The compute capability of the first GPUs with bf16 and TF32."""


def with_tf32(precision: str, config: TrainConfig, capability: tuple[int, int]) -> str:
    """Describe the precision of GPUs with this capability, for the banner."""
    return f"{precision} with TF32" if config.tf32 and capability >= AMPERE else precision
