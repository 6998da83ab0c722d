"""One optimizer step in all processes: compute, all-reduce and clip the gradients, then apply them."""

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from kubetrain_trainer.data.sampling import Batch
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.models.measures import check_sample_values
from kubetrain_trainer.pytorch_ddp.data_parallel import uncompiled
from kubetrain_trainer.pytorch_ddp.precision import forward, precision_of
from kubetrain_trainer.pytorch_ddp.sharding import is_dtensor, is_sharded, without_all_reduce
from kubetrain_trainer.pytorch_ddp.structures import split
from kubetrain_trainer.pytorch_ddp.task import Step
from kubetrain_trainer.pytorch_ddp.training import Training


def take_step(training: Training, inputs: object, targets: object, batch: Batch, step: int, factor: float) -> bool:
    """Take a step with this fraction of the peak learning rates. Return False if it was skipped."""
    with contextlib.nullcontext() if batch.is_usual else uncompiled(training.config):
        training.optimizers.set_rates(factor)
        if training.task.broadcast_buffers and is_sharded(training.config, training.group):  # DDP does that by itself
            training.group.broadcast_statistics(training.task.model)
        if training.task.step:
            return take_own_step(training, inputs, targets, batch, step, factor)
        training.optimizers.zero_grad()
        statistics = keep_statistics(training)
        loss = accumulate_gradients(training, inputs, targets, batch)
        norm = clip_gradients(training)
        # Loss and norm stay on the GPU until they are reported, unless on_nan=skip or fp16 has to choose here.
        is_taken = training.recent.accept_step(step, factor * training.peak_rate, loss, norm)
        if is_taken:
            training.staging.before_update()  # the copy of a checkpoint may still read the weights
            training.optimizers.step()
        else:
            restore_statistics(training, statistics)
        return is_taken


def accumulate_gradients(training: Training, inputs: object, targets: object, batch: Batch) -> Tensor:
    """Add up the gradients of the mean loss over the micro-batches of a batch. Return this process's part of the loss.

    Only the backward pass of the last micro-batch all-reduces them, which it does while it computes.
    """
    # DDP and FSDP average gradients over processes. This weight makes that a mean over samples, if some have fewer.
    weight = batch.weight(training.group.replicas)
    count = batch.micro_batches(training.config, training.group.replicas)
    *early, last = split((inputs, targets, [*batch.indices]), count, len(batch.indices))
    losses = []
    with without_all_reduce(training.model):
        for micro_batch in early:
            losses.append(forward_backward(training, weight, *micro_batch))
            if training.config.uses_cuda_graphs:
                clone_gradients(training.model)
    return sum(losses, start=forward_backward(training, weight, *last))


def forward_backward(training: Training, weight: float, inputs: object, targets: object, indices: list[int]) -> Tensor:
    outputs = forward(training.model, inputs, training.config, training.group.device)
    losses = (training.task.training_loss or training.task.loss)(outputs, targets)  # one for each sample
    check_sample_values("training loss", losses, len(indices))
    loss = losses.sum() * weight
    training.recent.loss_scale.scaled(loss).backward()
    return loss.detach()


def clone_gradients(model: nn.Module) -> None:
    """Move the gradients out of the memory of CUDA graphs, which the replay for the next micro-batch overwrites."""
    for parameter in model.parameters():
        parameter.grad = parameter.grad if parameter.grad is None else parameter.grad.clone()


def clip_gradients(training: Training) -> Tensor:
    """Unscale and clip the gradient, and return its norm before clipping, over all processes.

    Without clipping the norm is needed too: a gradient that is NaN shows only there.
    """
    unscale_gradients(training)
    norm = gradient_norm(training)
    if training.config.clip_norm:
        nn.utils.clip_grads_with_norm_(training.model.parameters(), training.config.clip_norm, norm)
    return norm


def unscale_gradients(training: Training) -> None:
    scale = training.recent.loss_scale
    if scale.is_used and (gradients := gradients_of(training)):
        torch._foreach_mul_(gradients, 1 / scale.factor)


def gradients_of(training: Training) -> list[Tensor]:
    return [parameter.grad for parameter in training.model.parameters() if parameter.grad is not None]


def gradient_norm(training: Training) -> Tensor:
    norm = nn.utils.get_total_norm(gradients_of(training))
    return full_norm(norm).to(training.group.device)  # without gradients it is on the CPU


def full_norm(norm: Any) -> Tensor:
    found: Tensor = norm.full_tensor() if is_dtensor(norm) else norm
    return found


def keep_statistics(training: Training) -> list[Tensor]:
    """Copy the running statistics, which even a skipped step changes. If none is skipped, return an empty list."""
    return [buffer.clone() for buffer in training.task.model.buffers()] if training.config.skips_steps else []


def restore_statistics(training: Training, statistics: list[Tensor]) -> None:
    for buffer, before in zip(training.task.model.buffers(), statistics, strict=True):
        buffer.copy_(before)


def take_own_step(training: Training, inputs: object, targets: object, batch: Batch, step: int, factor: float) -> bool:
    config, device = training.config, training.group.device
    training.staging.before_update()
    taken = Step(
        model=training.model,
        optimizer=training.optimizers.own,
        inputs=inputs,
        targets=targets,
        number=step,
        rate_factor=factor,
        device=device,
        bf16=precision_of(config, device) == "bf16",
        weight=batch.weight(training.group.replicas),
        clip_norm=config.clip_norm,
    )
    loss = training.task.step(taken)  # type: ignore[misc]
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        described = f"has shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"is a {type(loss).__name__}"
        raise KubetrainError(f"the loss that the task's own step returned {described}: return a tensor of one value")
    norm = torch.stack([*map(full_norm, taken.norms)]).norm().to(device) if taken.norms else gradient_norm(training)
    return training.recent.accept_step(step, factor * training.peak_rate, loss.detach().reshape(()).to(device), norm)
