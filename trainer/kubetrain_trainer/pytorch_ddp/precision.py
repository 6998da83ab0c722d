"""How a model computes: in bf16 where the hardware does, while its weights, loss and metrics stay in fp32."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.processors import have_bf16


def answer(model: nn.Module, inputs: Any, config: TrainConfig, device: torch.device) -> Any:
    """The model's outputs."""
    with torch.autocast(device.type, torch.bfloat16, enabled=precision_of(config, device) == "bf16"):
        outputs = model(inputs)
    return _in_fp32(outputs)


def precision_of(config: TrainConfig, device: torch.device) -> str:
    return _best(device.type) if config.precision == "auto" else config.precision


@cache
def _best(device_type: str) -> str:
    on_gpu = device_type == "cuda"
    return "bf16" if (torch.cuda.is_bf16_supported(including_emulation=False) if on_gpu else have_bf16()) else "fp32"


def _in_fp32(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype == torch.bfloat16 else value
    if isinstance(value, dict):
        return {name: _in_fp32(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_in_fp32(inner) for inner in value]
    return value
