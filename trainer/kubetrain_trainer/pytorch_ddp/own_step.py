"""A training step of a task's own: what it gets, and what it may leave to kubetrain."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from kubetrain_trainer.errors import KubetrainError


@dataclass(frozen=True, kw_only=True)
class Step:
    model: Any
    """The task's model, or the modules by name if it is an nn.ModuleDict. In several processes they are wrapped to
    average the gradients, so that losses must be computed with these."""
    optimizer: Any
    """The result of `Task.optimizer`, or the optimizer that the settings choose. The rates are those of this step."""
    inputs: Any
    targets: Any
    number: int
    """The number of the step, from 1."""
    rate_factor: float
    """The fraction of the peak learning rate at this step, which the optimizers' groups already have."""
    device: torch.device
    """The device that has the model, the inputs and the targets."""
    bf16: bool
    """True if autocast() computes in bf16."""
    weight: float
    """The factor that mean() gives each sample."""
    clip_norm: float
    """The setting, which update() applies."""
    norms: list[Tensor] = field(default_factory=list)
    """The norms of the gradients that update() has clipped, before that."""

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which models compute in the run's precision. Compute the loss itself outside of it."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)

    def mean(self, losses: Tensor) -> Tensor:
        """Return this process's part of the mean over the samples of all processes, which may have unequal numbers."""
        return losses.sum() * self.weight

    def update(self, loss: Tensor, optimizer: Optimizer | None = None) -> None:
        """Compute the gradient of the loss, clip it as `clip_norm` says, and take a step of this optimizer."""
        if optimizer is None:
            optimizer = self._only_optimizer()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.clip_norm:
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            self.norms.append(nn.utils.clip_grad_norm_(parameters, self.clip_norm))
        optimizer.step()

    def _only_optimizer(self) -> Optimizer:
        if isinstance(self.optimizer, Mapping):
            raise KubetrainError(f"update() needs to know which optimizer: {', '.join(self.optimizer)}")
        only: Optimizer = self.optimizer
        return only
