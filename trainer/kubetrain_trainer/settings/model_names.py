"""The names of the built-in models, so that typos are found before a framework is imported or anything starts.

A test compares these tables with the installed libraries. torchvision's googlenet and inception_v3 are missing, because
they return more than one tensor in training. Keras' original EfficientNet is missing, because it always normalizes its
input itself.
"""

from __future__ import annotations

import difflib
import math

from kubetrain_trainer.errors import InvalidSetting, did_you_mean
from kubetrain_trainer.settings.config import TrainConfig

TORCHVISION = (
    "alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161 densenet169 "
    "densenet201 efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_b5 "
    "efficientnet_b6 efficientnet_b7 efficientnet_v2_l efficientnet_v2_m efficientnet_v2_s maxvit_t mnasnet0_5 "
    "mnasnet0_75 mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_16gf "
    "regnet_x_1_6gf regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf regnet_y_128gf "
    "regnet_y_16gf regnet_y_1_6gf regnet_y_32gf regnet_y_3_2gf regnet_y_400mf regnet_y_800mf regnet_y_8gf "
    "resnet101 resnet152 resnet18 resnet34 resnet50 resnext101_32x8d resnext101_64x4d resnext50_32x4d "
    "shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 "
    "swin_b swin_s swin_t swin_v2_b swin_v2_s swin_v2_t vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 "
    "vgg19_bn vit_b_16 vit_b_32 vit_h_14 vit_l_16 vit_l_32 wide_resnet101_2 wide_resnet50_2"
).split()
KERAS = (
    "convnextbase convnextlarge convnextsmall convnexttiny convnextxlarge densenet121 densenet169 densenet201 "
    "efficientnetv2b0 efficientnetv2b1 efficientnetv2b2 efficientnetv2b3 efficientnetv2l efficientnetv2m "
    "efficientnetv2s inceptionresnetv2 inceptionv3 mobilenet mobilenetv2 mobilenetv3large mobilenetv3small "
    "nasnetlarge nasnetmobile resnet18 resnet101 resnet101v2 resnet152 resnet152v2 resnet50 resnet50v2 vgg16 vgg19 "
    "xception"
).split()

CLASSIFIER_METRICS = {"accuracy": (0.0, 1.0), "loss": (0.0, math.inf)}
"""The metrics of built-in models, with their least and greatest value."""
LIBRARIES = {"pytorch": ("torchvision", TORCHVISION), "tensorflow": ("keras", KERAS)}


def names_for(framework: str) -> list[str]:
    library, models = LIBRARIES[framework]
    return ["digits_cnn", *(f"{library}:{model}" for model in models)]


def is_import_path(model: str) -> bool:
    """Return True if this is the package.module:function of a user's own task."""
    module, _, function = model.partition(":")
    return function.isidentifier() and not _is_library(module)


def is_own_code(config: TrainConfig) -> bool:
    """Return True if the training runs a script, a command or a task of the user's own."""
    return bool(config.entry) or is_import_path(config.model)


def _is_library(module: str) -> bool:
    """Return True if this is a model library, perhaps misspelled, such as torchvison."""
    libraries = [library for library, _ in LIBRARIES.values()]
    return bool(difflib.get_close_matches(module, libraries, cutoff=0.8))


def check_model(framework: str, model: str) -> None:
    """Check that the framework has this model.

    Raises:
        InvalidSetting: if the framework's trainer does not have it.
    """
    names = names_for(framework)
    if model in names or is_import_path(model):
        return
    for other, (library, _) in LIBRARIES.items():
        if other != framework and model.startswith(f"{library}:"):
            raise InvalidSetting(
                f"model '{model}' is for {other}, but this run trains with {framework}: "
                f"use a {LIBRARIES[framework][0]}: model, or the pipeline train-{other}"
            )
    raise InvalidSetting(
        f"unknown model '{model}' (a task of your own is package.module:function): {did_you_mean(model, names)}"
    )


def image_size(config: TrainConfig) -> int:
    """Return the side length of images in pixels: the setting, or else what the model expects."""
    if config.image_size:
        return config.image_size
    return 8 if config.model == "digits_cnn" else 224
