"""The memory format of a model: channels_last speeds up 2-D convolutions, if the model works with it."""

import copy
import logging
from typing import Any

import torch
from torch import nn

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.pytorch_ddp.loading import Loader
from kubetrain_trainer.pytorch_ddp.precision import forward
from kubetrain_trainer.pytorch_ddp.streams import StreamLoader
from kubetrain_trainer.pytorch_ddp.task import Task

log = logging.getLogger(__name__)


def suitable_format(
    task: Task, config: TrainConfig, loader: Loader | StreamLoader, device: torch.device
) -> torch.memory_format | None:
    """Return the task's memory format, or by default one that suits the model, if there is any."""
    suits = task.memory_format is None and _suits(task.model, config, loader, device)
    return torch.channels_last if suits else task.memory_format


def _suits(model: nn.Module, config: TrainConfig, loader: Loader | StreamLoader, device: torch.device) -> bool:
    """Return True if a copy of the model works with channels_last. Some operations, such as view(), may not."""
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return False
    inputs = loader.first_inputs()
    if inputs is None:
        return False
    try:
        _try(model, inputs, config, device)
    except Exception as error:  # noqa: BLE001 - if the model is at fault, the first step reports it
        log.info(
            "channels_last does not suit this model (%s): it keeps its memory format", str(error).partition("\n")[0]
        )
        return False
    return True


def _try(model: nn.Module, inputs: Any, config: TrainConfig, device: torch.device) -> None:
    with torch.no_grad():
        trial = copy.deepcopy(model).to(memory_format=torch.channels_last)
        forward(trial, inputs, config, device)
