"""The layers of a model, which are brought together and computed again one at a time."""

from collections.abc import Iterator
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from kubetrain_trainer.pytorch_ddp.task import Task


def forwarded(model: nn.Module, task: Task) -> list[nn.Module]:
    """Return what a step calls: the model, or each of several if the task has its own step."""
    return [*model.values()] if task.step and isinstance(model, nn.ModuleDict) else [model]


def layers_of(model: nn.Module, task: Task) -> list[nn.Module]:
    """Return the layers that the task names, or else the members of the model's outermost lists and sequences."""
    found = task.layers(model) if task.layers else _members(model)
    return [layer for layer in found if any(True for _ in layer.parameters())]


def recompute_activations(model: nn.Module, task: Task) -> None:
    """Let the backward pass compute each layer again, so that what it computed need not be kept."""
    for root in forwarded(model, task):
        for layer in layers_of(root, task):
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def _members(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, nn.ModuleList | nn.Sequential):
        yield from module
    else:
        for child in module.children():
            yield from _members(child)
