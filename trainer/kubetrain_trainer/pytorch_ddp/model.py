"""The built-in models."""

from collections.abc import Mapping
from typing import Any

from torch import nn


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
