"""The number of floating-point operations that a model computes to learn from a sample."""

import copy
import logging
from typing import Any

import torch
from torch import Tensor, nn

from kubetrain_trainer.processes.resources import peak_operations
from kubetrain_trainer.pytorch_ddp.group import Group
from kubetrain_trainer.pytorch_ddp.precision import REDUCED, precision_of
from kubetrain_trainer.pytorch_ddp.structures import map_tensors, outline
from kubetrain_trainer.pytorch_ddp.task import Task
from kubetrain_trainer.settings.config import TrainConfig

log = logging.getLogger(__name__)


def seconds_at_peak(task: Task, config: TrainConfig, loader: Any, group: Group) -> float:
    """Return the time that all GPUs together need for a sample at least, in rank 0; 0: unknown."""
    peak = peak_operations(torch.cuda.get_device_name(group.device)) if group.device.type == "cuda" else 0.0
    is_reduced = precision_of(config, group.device) in REDUCED
    if not (peak and is_reduced and group.role.is_rank_0) or task.step or (inputs := loader.first_inputs()) is None:
        return 0.0
    return operations_per_sample(task.model, inputs, min(2, loader.size)) / (peak * group.devices)


def operations_per_sample(model: nn.Module, inputs: Any, samples: int) -> float:
    """Count the operations of a forward and backward pass, or return 0 if the model does not allow that.

    Nothing is computed: tensors without content pass through the model.
    """
    from torch.utils.flop_counter import FlopCounterMode  # loads Triton, for which only GPUs have a use

    try:
        counts = {torch.ops.aten.convolution_backward: _convolution_backward_operations}
        with FlopCounterMode(display=False, custom_mapping=counts) as counter:
            _backward(_outlined(model)(map_tensors(outline, inputs)))
        return float(counter.get_total_flops()) / samples
    except Exception as error:  # noqa: BLE001 - some models look at what they compute
        log.info("the model's operations cannot be counted: %s", str(error).partition("\n")[0])
        return 0.0


def _convolution_backward_operations(gradient: Any, inputs: Any, weight: Any, *others: Any, **results: Any) -> int:
    """Return as many operations for each gradient as the convolution itself has, also if it has groups."""
    from torch.utils.flop_counter import conv_flop_count

    *_, is_transposed, _padding, _groups, needed = others
    count: int = conv_flop_count(inputs, weight, gradient, is_transposed) * sum(needed[:2])
    return count


def _outlined(model: nn.Module) -> nn.Module:
    """Return a copy of the model whose tensors take no memory. What its forward pass keeps is not the model's own."""
    outlines: dict[int, Any] = {id(buffer): outline(buffer) for buffer in model.buffers()}
    for parameter in model.parameters():
        outlines[id(parameter)] = nn.Parameter(outline(parameter), parameter.requires_grad)
    return copy.deepcopy(model, outlines)


def _backward(outputs: Any) -> None:
    differentiable: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        differentiable.append(tensor)
        return tensor

    map_tensors(keep, outputs)
    torch.autograd.backward([output.sum() for output in differentiable if output.requires_grad])
