"""The optimizers, chosen by the settings or by the task, the peak rates of their groups, and averages of weights."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.loop.schedule import averaging_decay, peak_rate
from kubetrain_trainer.pytorch_ddp.task import Task
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.layers import rate_factors

IMPLEMENTATION = ("fused", "foreach")
"""The options of a group that are not hyperparameters. A run with another sharding may have saved others."""
log = logging.getLogger(__name__)


class Optimizers:
    """One or several optimizers that are saved and restored together."""

    def __init__(self, own: Optimizer | Mapping[str, Optimizer]) -> None:
        self.own = own
        """The optimizer, or the optimizers by name, as a step of the task's own uses them."""
        self._all = dict(own) if isinstance(own, Mapping) else {"": own}
        self._peaks = [float(group["lr"]) for group in self.groups()]

    @property
    def peak_rate(self) -> float:
        """The peak rate of the first group, which is reported for all."""
        return self._peaks[0]

    def groups(self) -> Iterator[dict[str, Any]]:
        return (group for optimizer in self._all.values() for group in optimizer.param_groups)

    def set_rates(self, factor: float) -> None:
        for group, peak in zip(self.groups(), self._peaks, strict=True):
            group["lr"] = peak * factor

    def zero_grad(self) -> None:
        for optimizer in self._all.values():
            optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        for optimizer in self._all.values():
            optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        states = {name: optimizer.state_dict() for name, optimizer in self._all.items()}
        return states.get("", states)

    def parameters(self) -> dict[str, Any]:
        """Return the parameters where state_dict() has the state of each."""
        states = {name: {"state": dict(enumerate(_parameters(optimizer)))} for name, optimizer in self._all.items()}
        return states.get("", states)

    def load_state_dict(self, state: dict[str, Any], *, keep_hyperparameters: bool) -> None:
        """Load the state of each parameter. Hyperparameters, which resume_from may have changed, can be kept.

        Raises:
            ValueError: if it is the state of other optimizers.
        """
        states = {"": state} if "" in self._all else state
        if states.keys() != self._all.keys():
            raise ValueError("the state of other optimizers")
        for name, optimizer in self._all.items():
            _load(optimizer, states[name], keep_hyperparameters=keep_hyperparameters)


def build_optimizers(config: TrainConfig, task: Task, global_batch: int) -> Optimizers:
    """Return the task's own optimizers, or the one that the settings choose."""
    if task.optimizer is None:
        return Optimizers(_build_chosen(config, task, global_batch))
    own = task.optimizer(task.model)
    if not all(isinstance(optimizer, Optimizer) for optimizer in (own.values() if isinstance(own, Mapping) else [own])):
        raise KubetrainError(
            f"optimizer returned a {type(own).__name__}: return an optimizer, or a dict of them by name"
        )
    return Optimizers(own)


def warn_of_untrained(model: nn.Module, optimizers: Optimizers) -> None:
    """Warn of parameters that no optimizer has, because a forgotten group would go unnoticed."""
    trained = {id(parameter) for group in optimizers.groups() for parameter in group["params"]}
    names = [
        name for name, parameter in model.named_parameters() if parameter.requires_grad and id(parameter) not in trained
    ]
    if names:
        log.warning(
            "no optimizer has %d of the model's parameters, such as %s: they keep their first values; if that is "
            "intended, freeze them with requires_grad_(False), which also saves time",
            len(names),
            names[0],
        )


def _build_chosen(config: TrainConfig, task: Task, global_batch: int) -> Optimizer:
    groups: Any = task.parameter_groups(task.model) if task.parameter_groups else _parameter_groups(config, task.model)
    rate, decay, options = config.learning_rate, config.weight_decay, config.optimizing
    # Of the two, PyTorch has a fused step of shards for AdamW only.
    how = {"fused": True} if config.optimizer == "adamw" or config.sharding == "none" else {"foreach": True}
    optimizer: Optimizer = (
        torch.optim.AdamW(groups, rate, (options.beta1, options.beta2), options.epsilon or 1e-8, decay, **how)
        if config.optimizer == "adamw"
        else torch.optim.SGD(groups, rate, options.momentum, 0, decay, options.nesterov, **how)
    )
    for group in optimizer.param_groups:  # a group's own rate, too, is meant for a global batch of base_batch_size
        group["lr"] *= peak_rate(config, global_batch) / config.learning_rate
    return optimizer


def _parameter_groups(config: TrainConfig, model: nn.Module) -> list[dict[str, Any]]:
    """Return the parameters by learning rate, the highest first, and by whether they decay."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    factors, groups = factors_of(config, model), dict[tuple[float, bool], list[nn.Parameter]]()
    for name, parameter in trained.items():
        is_decayed = config.optimizing.decay_norms or parameter.ndim > 1  # not biases and weights of normalizations
        groups.setdefault((factors[name], is_decayed), []).append(parameter)
    return [
        {"params": groups[key], "lr": config.learning_rate * key[0], "weight_decay": config.weight_decay * key[1]}
        for key in sorted(groups, reverse=True)
    ]


def factors_of(config: TrainConfig, model: nn.Module) -> Mapping[str, float]:
    """Return the factor of each trained parameter's learning rate."""
    trained = (name for name, parameter in model.named_parameters() if parameter.requires_grad)
    return rate_factors(trained, config.layer_rate)


def _parameters(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _load(optimizer: Optimizer, state: dict[str, Any], *, keep_hyperparameters: bool) -> None:
    own = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, hyperparameters in zip(optimizer.param_groups, own, strict=True):
        if ("betas" in group) != ("betas" in hyperparameters):
            raise ValueError("the state of another kind of optimizer")
        group.update({name: hyperparameters[name] for name in IMPLEMENTATION if name in hyperparameters})
        if keep_hyperparameters:
            group.update(hyperparameters)


class Averages:
    """A moving average of the weights, which is validated and exported instead of the weights themselves."""

    def __init__(self, config: TrainConfig, model: nn.Module, copied: nn.Module) -> None:
        self.model = copied
        """A copy of the model with the averages of its weights and running statistics."""
        copied.load_state_dict(model.state_dict())
        self._config = config
        parameters = list(zip(copied.parameters(), model.parameters(), strict=True))
        buffers = list(zip(copied.buffers(), model.buffers(), strict=True))
        floats = [[pair for pair in pairs if pair[0].is_floating_point()] for pairs in (parameters, buffers)]
        self._averaged = [tuple(zip(*pairs, strict=True)) for pairs in floats if pairs]
        """Lists of averages and of what they average: parameters, which may be sharded, and buffers, which are not."""
        self._counters = [pair for pair in (*parameters, *buffers) if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights of this step to the averages."""
        # In place and on the device, for all tensors at once. Averages of a sharded model have the same shards as its
        # weights, so that processes need not communicate.
        decay = averaging_decay(self._config, step)
        for averages, values in self._averaged:
            get_ema_multi_avg_fn(decay)(averages, values, step)  # type: ignore[no-untyped-call]
        for copy_of_counter, counter in self._counters:
            copy_of_counter.copy_(counter)
