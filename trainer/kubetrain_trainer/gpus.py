"""The capabilities of generations of GPUs."""

import re

from kubetrain_trainer.config import TrainConfig

AMPERE = (8, 0)
"""The compute capability of the first GPUs with bf16 and TF32."""


def with_tf32(precision: str, config: TrainConfig, capability: tuple[int, int]) -> str:
    """Describe the precision of GPUs with this capability, for the banner."""
    return f"{precision} with TF32" if config.tf32 and capability >= AMPERE else precision


PEAKS = {
    **{"B200": 2250e12, "H200 NVL": 835e12, "H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12},
    **{"A100": 312e12, "L40S": 362e12, "L4": 121e12, "V100": 125e12, "T4": 65e12},
}
"""The most operations per second in bf16 or fp16, by words of the GPU's name, from the data sheets."""


def peak_operations(name: str) -> float:
    """Return the most operations per second of a GPU with this name; 0: unknown, as of a part of a GPU."""
    if "MIG" in name:
        return 0.0
    return next((peak for part, peak in PEAKS.items() if re.search(rf"\b{part}\b", name)), 0.0)
