"""Sharding (FSDP): each process keeps a shard of every parameter, of its gradient and of its optimizer's state.

Such a tensor is a DTensor, which only sharded trainings import, because that takes a second.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from kubetrain_trainer.pytorch_ddp.group import Group
from kubetrain_trainer.settings.config import TrainConfig


def is_sharded(config: TrainConfig, group: Group) -> bool:
    return config.sharding != "none" and group.role.world_size > 1


def shards(config: TrainConfig, group: Group) -> int:
    """Return how many processes hold one copy of the state together. They are the first ones."""
    # sharding=hybrid is HSDP: each pod has a whole copy, so that only gradients travel between pods.
    if not is_sharded(config, group):
        return 1
    return group.role.world_size if config.sharding == "full" else group.role.local_world_size


def is_dtensor(tensor: Any) -> bool:
    """Return True for a tensor of which this process has a shard."""
    return hasattr(tensor, "full_tensor")


def norm_of(model: nn.Module, precisely: bool) -> tuple[float, int]:
    """Return the norm of the trained weights that this process holds, and their number."""
    trained: list[Any] = [parameter.detach() for parameter in model.parameters() if parameter.requires_grad]
    local = [tensor.to_local() if is_dtensor(tensor) else tensor for tensor in trained]
    held = [tensor.abs() if tensor.is_complex() else tensor for tensor in local]
    is_double = precisely or any(tensor.dtype == torch.float64 for tensor in held)  # which takes ten times as long
    norms = torch._foreach_norm(held, dtype=torch.float64 if is_double else torch.float32) if held else ()
    return math.hypot(*(torch.stack([*norms]).tolist() if norms else ())), sum(tensor.numel() for tensor in held)


def reshard(model: nn.Module) -> None:
    """Free the weights that a forward pass has all-gathered. Without a backward pass they would stay, and the next
    forward pass would use them, even if they have changed since."""
    sharded: list[Any] = [module for module in model.modules() if hasattr(module, "reshard")]
    for module in sharded:
        module.reshard()


@contextlib.contextmanager
def without_all_reduce(model: nn.Module) -> Iterator[None]:
    """Add up gradients without an all-reduce. Those of a sharded model are reduce-scattered over the processes of a
    copy of the state in any case, because whole ones would take as much memory as the shards save."""
    sharded: list[Any] = [module for module in model.modules() if hasattr(module, "set_requires_all_reduce")]
    for module in sharded:
        module.set_requires_all_reduce(False, recurse=False)
    with getattr(model, "no_sync", contextlib.nullcontext)():
        yield
    for module in sharded:
        module.set_requires_all_reduce(True, recurse=False)
