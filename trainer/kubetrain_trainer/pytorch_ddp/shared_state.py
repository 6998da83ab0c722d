"""A state that the chief has read, sent to every process tensor by tensor: storage is read once, however many train."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from kubetrain_trainer.pytorch_ddp.group import Group
from kubetrain_trainer.pytorch_ddp.structures import as_bytes, outline, tensors_in, with_tensors


def shared_state(read: Callable[[], Any], group: Group) -> Any:
    """Return what the chief reads, in every process, with its tensors on the process's device."""
    state = read() if group.role.is_chief else None
    outlined = group.from_chief(lambda: with_tensors(state, map(outline, tensors_in(state))), takes_long=True)
    own = iter(tensors_in(state))
    return with_tensors(outlined, (_sent(each, own, group) for each in tensors_in(outlined)))


def _sent(outlined: Tensor, own: Iterator[Tensor], group: Group) -> Tensor:
    tensor = torch.empty_like(outlined, device="cpu")
    if group.role.is_chief:
        tensor.copy_(next(own))  # reads the file if it is mapped, for as long as the storage needs
    if group.role.world_size > 1:
        dist.broadcast(as_bytes(tensor), 0, group.patient)
    return tensor.to(group.device)
