"""Sharding (FSDP): each process keeps a part of every parameter, of its gradient and of its optimizer's state.

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
    if not is_sharded(config, group):
        return 1
    return group.role.world_size if config.sharding == "full" else group.role.local_world_size


def is_part(tensor: Any) -> bool:
    """Return True for a tensor of which this process has a part."""
    return hasattr(tensor, "full_tensor")


def norm_of(model: nn.Module, precisely: bool) -> tuple[float, int]:
    """Return the norm of the trained weights that this process holds, and their number."""
    trained: list[Any] = [each.detach() for each in model.parameters() if each.requires_grad]
    local = [each.to_local() if is_part(each) else each for each in trained]
    held = [each.abs() if each.is_complex() else each for each in local]
    is_double = precisely or any(each.dtype == torch.float64 for each in held)  # which takes ten times as long
    norms = torch._foreach_norm(held, dtype=torch.float64 if is_double else torch.float32) if held else ()
    return math.hypot(*(torch.stack([*norms]).tolist() if norms else ())), sum(each.numel() for each in held)


def keep_parts_only(model: nn.Module) -> None:
    """Give back the weights that a forward pass has brought together. Without a backward pass they would stay, and the
    next forward pass would use them, even if they have changed since."""
    sharded: list[Any] = [each for each in model.modules() if hasattr(each, "reshard")]
    for each in sharded:
        each.reshard()


@contextlib.contextmanager
def without_exchange(model: nn.Module) -> Iterator[None]:
    """Add up gradients in this process alone. A sharded model's are spread over the processes of a copy of the state in
    any case, because whole ones would take as much memory as the parts save."""
    sharded: list[Any] = [each for each in model.modules() if hasattr(each, "set_requires_all_reduce")]
    for each in sharded:
        each.set_requires_all_reduce(False, recurse=False)
    with getattr(model, "no_sync", contextlib.nullcontext)():
        yield
    for each in sharded:
        each.set_requires_all_reduce(True, recurse=False)
