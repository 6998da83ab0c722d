"""Models that were built on the device "meta", where tensors have no content: they get it here."""

from typing import Any

import torch
from torch import Tensor, nn

from kubetrain_trainer.errors import KubetrainError


def fill(model: nn.Module, device: torch.device) -> None:
    """Move the model to the device, and give it its first weights where it has none.

    Raises:
        KubetrainError: if a part of the model does not know its first weights.
    """
    empty = [module for module in model.modules() if any(each.is_meta for each in _own(module))]
    filled: dict[int, Tensor] = {}  # one tensor may belong to several modules
    for module in empty:
        _allocate(module, device, filled)
    for module in reversed(empty):  # what is inside a module first, as when it was built
        _reset(module)
    model.to(device)


def _own(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _allocate(module: nn.Module, device: torch.device, filled: dict[int, Tensor]) -> None:
    kinds: list[dict[str, Any]] = [module._parameters, module._buffers]
    for tensors in kinds:
        for name, tensor in tensors.items():
            if tensor is not None and tensor.is_meta:
                tensors[name] = filled.setdefault(id(tensor), _allocated(tensor, device))


def _allocated(tensor: Tensor, device: torch.device) -> Tensor:
    empty = torch.empty_like(tensor, device=device)
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def _reset(module: nn.Module) -> None:
    reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    if reset is None:
        raise KubetrainError(
            f"the model was built on the device meta, but its {type(module).__name__} cannot fill its own tensors: "
            "give it a method reset_parameters() that sets all of them"
        )
    with torch.no_grad():
        reset()
