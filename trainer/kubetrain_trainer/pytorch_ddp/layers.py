"""Layers that keep their weights."""

from torch import nn

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.layers import matching


def freeze(model: nn.Module, patterns: str) -> None:
    """Let these parameters, and the statistics of normalizations that have only such, stay as they are.

    Raises:
        InvalidSetting: if a pattern matches none, or nothing is left to train.
    """
    parameters = dict(model.named_parameters())
    for name in matching(patterns, parameters):
        parameters[name].requires_grad_(False)
    if not any(each.requires_grad for each in parameters.values()):
        raise InvalidSetting(f"freeze: '{patterns}' leaves nothing to train")
    for module in model.modules():
        own = [*module.parameters(recurse=False)]
        if patterns and own and not any(each.requires_grad for each in own):
            module.training = False  # not eval(), which includes the modules within
