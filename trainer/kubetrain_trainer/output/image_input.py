"""The preprocessing of images for the built-in models: in training, in the evaluation, and for users of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.model_names import image_size, is_own_code

# Channel means and standard deviations of pixels in [0, 1] that pretrained models of torchvision and Keras expect.
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
THUMBNAIL_PIXELS = 64
FAITHFUL = 2
"""An image with this many times as many pixels in a row as needed looks like the whole image when it is scaled."""


def describe_input(config: TrainConfig, framework: str) -> dict[str, Any]:
    """Return the preprocessing as model.json describes it; empty if your own code defines it."""
    if is_own_code(config):
        return {}
    pixels = image_size(config)
    cropped = {"shorter_side": shorter_side(config)} if shorter_side(config) > pixels else {}
    return {
        "size": pixels,
        "shape": [3, pixels, pixels] if framework == "pytorch" else [pixels, pixels, 3],
        "channels": "RGB",
        "resize": f"the shorter side to {'shorter_side' if cropped else 'size'}, bilinear with antialiasing",
        **cropped,
        "crop": "center",
        "range": [0, 1],
        "mean": list(MEAN),
        "deviation": list(DEVIATION),
    }


def shorter_side(config: TrainConfig) -> int:
    """Return the length in pixels to which the shorter side of an image is scaled before the center is cropped."""
    return round(image_size(config) / config.evaluation_crop)


def with_recorded_input(config: TrainConfig, description: Mapping[str, Any]) -> TrainConfig:
    """Return the settings with the sizes that model.json names, if it describes the input.

    Raises:
        KubetrainError: if the model needs another preprocessing than this release has.
    """
    recorded = description.get("input")
    if not recorded:
        return config
    size = int(recorded.get("size", 0))
    sized = replace(config, image_size=size, evaluation_crop=size / recorded.get("shorter_side", size))
    ours = describe_input(sized, description["framework"])
    if other := [name for name in {**ours, **recorded} if ours.get(name) != recorded.get(name)]:
        raise KubetrainError(
            f"the model was trained with another preprocessing than this release has ({', '.join(other)}): use the "
            "release that published it"
        )
    return sized
