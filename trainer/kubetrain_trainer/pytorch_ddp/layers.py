"""The layers of a model: some keep their weights, some are all-gathered and recomputed one at a time."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.pytorch_ddp.task import Task
from kubetrain_trainer.settings.layers import matching


def freeze(model: nn.Module, patterns: str) -> None:
    """Let these parameters, and the statistics of normalizations that have only such, stay as they are.

    Raises:
        InvalidSetting: if a pattern matches none, or nothing is left to train.
    """
    parameters = dict(model.named_parameters())
    for name in matching(patterns, parameters):
        parameters[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise InvalidSetting(f"train.freeze: '{patterns}' leaves nothing to train")
    for module in model.modules():
        own = [*module.parameters(recurse=False)]
        if patterns and own and not any(parameter.requires_grad for parameter in own):
            module.training = False  # not eval(), which includes the modules within


def called_modules(model: nn.Module, task: Task) -> list[nn.Module]:
    """Return what a step calls: the model, or each of several if the task has its own step."""
    return [*model.values()] if task.step and isinstance(model, nn.ModuleDict) else [model]


def layers_of(model: nn.Module, task: Task) -> list[nn.Module]:
    """Return the layers that the task names, or else the members of the model's outermost lists and sequences."""
    found = task.layers(model) if task.layers else _members(model)
    return [layer for layer in dict.fromkeys(found) if any(True for _ in layer.parameters())]


def all_layers(model: nn.Module, task: Task) -> list[nn.Module]:
    """Return the layers of all that a step calls."""
    return [layer for root in called_modules(model, task) for layer in layers_of(root, task)]


def recompute_activations(model: nn.Module, task: Task) -> None:
    """Let the backward pass compute each layer again, so that what it computed need not be kept."""
    for layer in all_layers(model, task):
        # Layers without statistics get no contexts, because PyTorch cannot compile a layer with them.
        contexts = {"context_fn": partial(_contexts, layer)} if _norms_with_statistics(layer) else {}
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, **contexts)


def has_running_statistics(model: nn.Module, task: Task) -> bool:
    return any(map(_norms_with_statistics, all_layers(model, task)))


def _contexts(layer: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the forward pass and of its repetition."""
    return nullcontext(), _keeping_statistics(layer)


@contextmanager
def _keeping_statistics(layer: nn.Module) -> Iterator[None]:
    """Let normalizations add nothing to their running statistics, which have the batch already."""
    norms = _norms_with_statistics(layer)
    kept = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, (momentum, counter) in zip(norms, kept, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, counter


def _norms_with_statistics(layer: nn.Module) -> list[_NormBase]:
    return [module for module in layer.modules() if isinstance(module, _NormBase) and module.track_running_stats]


def _members(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, nn.ModuleList | nn.Sequential):
        for member in module:
            if isinstance(member, nn.ModuleList):  # it cannot be called
                yield from _members(member)
            else:
                yield member
    else:
        for child in module.children():
            yield from _members(child)
