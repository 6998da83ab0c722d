"""The task to train, built-in or your own: model, data, loss and metrics."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.data import Dataset

from kubetrain_trainer.data.sample_order import derived_seed
from kubetrain_trainer.data.sampling import Sampler
from kubetrain_trainer.data.stored_images import ImageData, read_images, synthetic_images
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.own_code.own_task import build_own_task
from kubetrain_trainer.pytorch_ddp.images.augmented_images import AugmentedImages, mixed_batch
from kubetrain_trainer.pytorch_ddp.images.decoded_images import StoredImages
from kubetrain_trainer.pytorch_ddp.model import build_model
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.model_names import check_model, is_import_path


@dataclass(frozen=True, kw_only=True)
class Step:
    """A training step of a task's own: what it gets, and what it may leave to kubetrain."""

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
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            self.norms.append(nn.utils.clip_grad_norm_(parameters, self.clip_norm))
        optimizer.step()

    def _only_optimizer(self) -> Optimizer:
        if isinstance(self.optimizer, Mapping):
            raise KubetrainError(f"update() needs to know which optimizer: {', '.join(self.optimizer)}")
        only: Optimizer = self.optimizer
        return only


@dataclass(frozen=True, kw_only=True)
class Task:
    """The parts of a task. To train your own, set `model` to a function `build(config, data_dir) -> Task`.

    Only model, data and loss are needed.
    """

    model: nn.Module
    """Its `train()` is called before the training and after each validation. To keep a part of the model in evaluation
    mode, override `train()`. Its forward pass must not change parameters in place: a GPU may be copying them for a
    checkpoint. A model that is too large for one process can be built on the device "meta" if `sharding` is set: then
    each module's `reset_parameters()` gives it its first weights."""
    data: Callable[[str], Any]
    """Returns the samples of a split: an object with `len()` and `[index]`, each item a pair of inputs and targets.

    It may also be an object that only yields such pairs, those for its own process, with `state_dict()` and
    `load_state_dict()`. The training reads it again when it ends. `len()` is an epoch, in samples of all processes.
    If its `yields_batches` is True, it yields whole batches, for the training of `batch_size` samples; `len()` counts
    samples nevertheless.
    """
    collate: Callable[[list[Any]], tuple[Any, Any]] | None = None
    """Makes a batch of inputs and targets from a list of samples, such as by padding them."""
    training_data: Callable[[], Any] | None = None
    """Returns the samples to train on, if they differ from data("train"), such as by augmentation."""
    sampler: Sampler | None = None
    """Returns the indices of the samples of an epoch in the order of their use, such as balanced over classes: the same
    in each process, and as many for each epoch. It may be called while the previous epoch still runs."""

    loss: Callable[[Any, Any], Tensor]
    """Computes a loss for each sample, shape (batch,), from outputs and targets."""
    training_loss: Callable[[Any, Any], Tensor] | None = None
    """The loss to minimize, if it differs from the loss that validation measures."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Functions by metric name. Each returns a value for each sample, shape (batch,); the metric is the mean.

    For a metric of the whole split, an object with `reset()`, `update(outputs, targets)` and `compute()`: one of
    torchmetrics, or one that counts in a tensor `sums`, which is added up over all processes before `compute()`.
    """
    classes: tuple[str, ...] = ()
    """Class names of a classifier with outputs of shape (batch, classes). They add a confusion matrix to the report.

    Its targets are classes, of shape (batch,) or (batch, 1), or the share of each class, of shape (batch, classes).
    """

    parameter_groups: Callable[[Any], list[dict[str, Any]]] | None = None
    """Returns the parameter groups of the model for the optimizer that the settings choose. What a group sets, such as
    `lr` or `weight_decay`, replaces the setting."""
    optimizer: Callable[[Any], Optimizer | Mapping[str, Optimizer]] | None = None
    """Returns the optimizer of the model in place of the one that the settings choose, or several by name. The rates of
    its groups are peaks, which the schedule scales, but not `lr_scaling`."""
    schedule: Callable[[int], float] | None = None
    """Returns the factor of the peak learning rate at a step (the first is 1), in place of warmup and decay."""
    step: Callable[[Step], Tensor] | None = None
    """Takes a training step, with forward and backward pass and update, and returns the loss to report."""

    memory_format: torch.memory_format | None = None
    """The memory format of the model. By default, models with 2-D convolutions have torch.channels_last if they work
    with it."""
    broadcast_buffers: bool | None = None
    """True if rank 0's buffers must replace those of the other processes at each step, not only before they are
    validated and saved. By default, they do if there are others than the statistics of normalizations, and not with
    `sharding`."""
    find_unused_parameters: bool = False
    """True if a step may leave out parameters of the model. Looking for them takes time."""
    static_graph: bool = False
    """True if each step computes the same operations, which saves time."""
    tensor_plan: Mapping[str, Any] | None = None
    """With `tensor_parallel`, how processes compute modules together: styles of torch.distributed.tensor.parallel by
    their names, with * for any characters. Each process computes the other modules whole."""
    layers: Callable[[Any], Iterable[nn.Module]] | None = None
    """Returns the layers of the model that `sharding` all-gathers, and `activation_checkpointing` computes again,
    one at a time. By default, the members of its outermost nn.ModuleList and nn.Sequential."""


def build_task(config: TrainConfig, data_dir: Path) -> Task:
    check_model("pytorch", config.model)
    if not is_import_path(config.model):
        return _classify_images(config, data_dir)
    task: Task = build_own_task(config, data_dir, Task)
    return task


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    is_number = ~outputs.isnan().any(dim=1)  # else the answer would be the class of the first NaN
    return ((outputs.argmax(dim=1) == targets) & is_number).to(torch.float32)


def cross_entropy(outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=smoothing)


def _classify_images(config: TrainConfig, data_dir: Path) -> Task:
    data = image_data(config, data_dir)
    return Task(
        model=build_model(config.model, len(data.classes), config.model_args),
        data=data.split,
        training_data=data.training,
        collate=partial(mixed_batch, classes=len(data.classes)),
        loss=cross_entropy,
        training_loss=partial(cross_entropy, smoothing=config.label_smoothing) if config.label_smoothing else None,
        metrics={"accuracy": accuracy},
        classes=data.classes,
        memory_format=torch.channels_last,
        broadcast_buffers=False,  # they are only statistics
        static_graph=True,
    )


def image_data(config: TrainConfig, data_dir: Path) -> ImageData:
    if config.data == "synthetic":
        return synthetic_images(config, SyntheticImages)
    return read_images(config, data_dir, StoredImages, AugmentedImages)


class SyntheticImages(Dataset[tuple[Tensor, int]]):
    """Noise around one pattern per class: learnable, without files, and the same in every process."""

    def __init__(self, samples: int, classes: int, pixels: int, split: str) -> None:
        self._samples = samples
        self._patterns = torch.randn(classes, 3, pixels, pixels, generator=torch.Generator().manual_seed(0))
        seed = torch.Generator().manual_seed(sum(split.encode()))
        self._noise = torch.randn(2 * self._patterns[0].numel(), generator=seed)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        label = index % len(self._patterns)
        pattern = self._patterns[label]
        start = derived_seed(index) % pattern.numel()
        # Drawing new noise for each sample would take longer than a step of a small model.
        return pattern + self._noise[start : start + pattern.numel()].view(pattern.shape), label
