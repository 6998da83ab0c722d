"""One optimizer step in all processes: compute, exchange and clip the gradients, then apply them."""

import contextlib

from torch import Tensor, nn

from kubetrain_trainer.pytorch_ddp.data import split
from kubetrain_trainer.pytorch_ddp.precision import forward
from kubetrain_trainer.pytorch_ddp.training import Training
from kubetrain_trainer.sample_values import check_sample_values, count_samples
from kubetrain_trainer.sampling import Batch


def take_step(training: Training, inputs: object, targets: object, batch: Batch, step: int, rate: float) -> bool:
    """Take a step. Return False if it was skipped."""
    for group in training.optimizer.param_groups:
        group["lr"] = rate
    training.optimizer.zero_grad(set_to_none=True)
    statistics = keep_statistics(training)
    loss = add_gradients(training, inputs, targets, batch)
    is_taken = training.recent.accept_step(step, rate, loss, clip_gradients(training))
    if is_taken:
        training.optimizer.step()
    else:
        restore_statistics(training, statistics)
    return is_taken


def clip_gradients(training: Training) -> Tensor:
    """Clip the gradient and return its norm before clipping, over all processes.

    Without clipping the norm is needed too: a gradient that is NaN shows only there.
    """
    gradients = [each.grad for each in training.model.parameters() if each.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    if training.config.clip_norm:
        nn.utils.clip_grads_with_norm_(training.model.parameters(), training.config.clip_norm, norm)
    return norm


def keep_statistics(training: Training) -> list[Tensor]:
    """Copy the running statistics, which even a skipped step changes. With on_nan=stop, return an empty list."""
    return [buffer.clone() for buffer in training.task.model.buffers()] if training.config.on_nan == "skip" else []


def restore_statistics(training: Training, statistics: list[Tensor]) -> None:
    for buffer, before in zip(training.task.model.buffers(), statistics, strict=True):
        buffer.copy_(before)


def add_gradients(training: Training, inputs: object, targets: object, batch: Batch) -> Tensor:
    """Add up the gradient of the mean loss, part by part. The last part exchanges it between processes."""
    weight = batch.weight(training.group.role.world_size)  # turns the mean over processes into one over samples
    *parts, last = split([inputs, targets], batch.parts(training.config.accumulate, training.group.role.world_size))
    with getattr(training.model, "no_sync", contextlib.nullcontext)():
        losses = [add_gradient(training, weight, *part) for part in parts]
    return sum(losses, start=add_gradient(training, weight, *last))


def add_gradient(training: Training, weight: float, inputs: object, targets: object) -> Tensor:
    outputs = forward(training.model, inputs, training.config, training.group.device)
    losses = (training.task.training_loss or training.task.loss)(outputs, targets)
    check_sample_values("training loss", losses, count_samples([targets, inputs]))
    loss = losses.sum() * weight
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()
