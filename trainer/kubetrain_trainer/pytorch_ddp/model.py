"""The built-in models, and the content of models that were built on the device "meta", where tensors have none."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kubetrain_trainer.errors import KubetrainError


def build_model(name: str, num_classes: int, model_args: Mapping[str, Any]) -> nn.Module:
    if name == "digits_cnn":
        return digits_cnn(num_classes, **model_args)
    # Imported here, because the import takes seconds and digits_cnn does not need it.
    import torchvision

    model: nn.Module = torchvision.models.get_model(
        name.removeprefix("torchvision:"), num_classes=num_classes, **model_args
    )
    return model


def digits_cnn(num_classes: int, width: int = 32, dropout: float = 0.2) -> nn.Module:
    """Three convolutions, for small images of any size."""
    return nn.Sequential(
        *_convolution(3, width),
        *_convolution(width, 2 * width),
        nn.MaxPool2d(2),
        *_convolution(2 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(4 * width, num_classes),
    )


def _convolution(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()


def fill(model: nn.Module, device: torch.device) -> None:
    """Move the model to the device, and give it its first weights where it has none.

    Raises:
        KubetrainError: if a part of the model does not know its first weights.
    """
    empty = [module for module in model.modules() if any(tensor.is_meta for tensor in _direct_tensors(module))]
    filled: dict[int, Tensor] = {}  # one tensor may belong to several modules
    for module in empty:
        _allocate(module, device, filled)
    for module in reversed(empty):  # what is inside a module first, as when it was built
        _reset(module)
    model.to(device)


def _direct_tensors(module: nn.Module) -> list[Tensor]:
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
