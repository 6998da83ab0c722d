"""Mixed precision: models compute in bf16 or fp16; weights, loss and metrics stay in fp32."""

from functools import cache
from typing import Any

import torch
from torch import nn

from kubetrain_trainer.processes.resources import has_bf16, with_tf32
from kubetrain_trainer.pytorch_ddp.structures import map_tensors
from kubetrain_trainer.settings.config import TrainConfig

REDUCED = {"bf16": torch.bfloat16, "fp16": torch.float16}


def forward(model: nn.Module, inputs: Any, config: TrainConfig, device: torch.device) -> Any:
    """Return the model's outputs, in fp32."""
    # autocast computes matrix products and convolutions in the reduced type, and keeps in fp32 what needs its range,
    # such as losses. bf16 has the exponents of fp32; the small ones of fp16 need a scaled loss (see LossScale).
    reduced = REDUCED.get(precision_of(config, device))
    with torch.autocast(device.type, reduced, enabled=reduced is not None):
        outputs = model(inputs)
    return map_tensors(lambda tensor: tensor.float() if tensor.dtype == reduced else tensor, outputs)


def use_tf32(config: TrainConfig) -> None:
    """Choose how GPUs compute in fp32. By default, PyTorch uses TF32 for convolutions but not for other products."""
    chosen = "ieee" if config.precision == "fp32" else "tf32"
    torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.fp32_precision = chosen


def describe_precision(config: TrainConfig, device: torch.device) -> str:
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
    return with_tf32(precision_of(config, device), config, capability)


def precision_of(config: TrainConfig, device: torch.device) -> str:
    """Return fp32, bf16 or fp16: TF32 is how a GPU multiplies what is in fp32."""
    if config.precision == "auto":
        return _best_precision(device.type)
    return "fp32" if config.precision == "tf32" else config.precision


@cache
def _best_precision(device_type: str) -> str:
    on_gpu = device_type == "cuda"
    return "bf16" if (torch.cuda.is_bf16_supported(including_emulation=False) if on_gpu else has_bf16()) else "fp32"
