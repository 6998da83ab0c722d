"""The preprocessing of images for the built-in models: in training, in the evaluation, and for users of a model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.model_names import image_size, is_own_code

# Channel means and standard deviations of pixels in [0, 1] that pretrained models of torchvision and Keras expect.
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)


def describe_input(config: TrainConfig, framework: str) -> dict[str, Any]:
    """Return the preprocessing as model.json describes it; empty if your own code defines it."""
    if is_own_code(config):
        return {}
    pixels = image_size(config)
    return {
        "size": pixels,
        "shape": [3, pixels, pixels] if framework == "pytorch" else [pixels, pixels, 3],
        "channels": "RGB",
        "resize": "the shorter side to size, bilinear with antialiasing",
        "crop": "center",
        "range": [0, 1],
        "mean": list(MEAN),
        "deviation": list(DEVIATION),
    }


def with_recorded_input(config: TrainConfig, description: Mapping[str, Any]) -> TrainConfig:
    """Return the settings with the image size that model.json names, if it describes the input.

    Raises:
        KubetrainError: if the model needs another preprocessing than this release has.
    """
    recorded = description.get("input")
    if not recorded:
        return config
    sized = replace(config, image_size=int(recorded.get("size", 0)))
    ours = describe_input(sized, description["framework"])
    if other := [name for name in {**ours, **recorded} if ours.get(name) != recorded.get(name)]:
        raise KubetrainError(
            f"the model was trained with another preprocessing than this release has ({', '.join(other)}): use the "
            "release that published it"
        )
    return sized
