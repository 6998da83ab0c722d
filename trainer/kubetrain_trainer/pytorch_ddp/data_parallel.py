"""The model as each process trains it: wrapped to average its gradients over all processes, and its memory format."""

import contextlib
import copy
import logging
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from kubetrain_trainer.pytorch_ddp.group import Group
from kubetrain_trainer.pytorch_ddp.loading import Loader
from kubetrain_trainer.pytorch_ddp.precision import forward
from kubetrain_trainer.pytorch_ddp.sharding import is_sharded
from kubetrain_trainer.pytorch_ddp.streams import StreamLoader
from kubetrain_trainer.pytorch_ddp.task import Task
from kubetrain_trainer.reporting.own_time import OwnTime
from kubetrain_trainer.settings.config import TrainConfig

ENGINE: Any = torch.autograd.Variable._execution_engine
log = logging.getLogger(__name__)


class TimedAllReduce(DistributedDataParallel):
    """Notes how long it waits for the other processes.

    The wait for the last gradients is a callback of the autograd engine at the end of a backward pass. Callbacks run
    in the order in which they are queued, so one is queued before it, and one after it.
    """

    def __init__(self, model: nn.Module, own_time: OwnTime, **options: Any) -> None:
        super().__init__(model, **options)
        self._own_time = own_time
        *_, last = (parameter for parameter in model.parameters() if parameter.requires_grad)
        last.register_hook(self._on_gradient)  # type: ignore[no-untyped-call]  # the last parameter has one of the first gradients

    def _on_gradient(self, _: Tensor) -> None:
        ENGINE.queue_callback(self._on_computed)

    def _on_computed(self) -> None:
        ENGINE.queue_callback(partial(self._on_reduced, self._own_time.clock.mark()))

    def _on_reduced(self, began: Any) -> None:
        self._own_time.note_wait(began, self._own_time.clock.mark())

    def _sync_buffers(self) -> None:
        began = self._own_time.clock.mark()
        super()._sync_buffers()  # type: ignore[no-untyped-call]
        self._on_reduced(began)


def data_parallel(config: TrainConfig, task: Task, group: Group, own_time: OwnTime) -> nn.Module:
    """Wrap the model, or each of several models if the task has its own step, and compile it if `compile` is set.

    A sharded model (FSDP) needs no wrapper: it reduces its gradients itself.
    """
    if is_sharded(config, group):
        return task.model
    if task.step and isinstance(task.model, nn.ModuleDict):
        models = {name: _wrapped(model, config, task, group, own_time) for name, model in task.model.items()}
        return nn.ModuleDict(models)
    return _wrapped(task.model, config, task, group, own_time)


def _wrapped(model: nn.Module, config: TrainConfig, task: Task, group: Group, own_time: OwnTime) -> nn.Module:
    if config.is_compiled:
        model.compile(mode=config.compile)  # in place, so that its parameters keep their names
    is_trained = any(parameter.requires_grad for parameter in model.parameters())
    if group.role.world_size == 1 or not is_trained:
        return model
    # The backward pass fills buckets of gradients, the last layers' first. The all-reduce of a full one runs while the
    # others are computed. Gradients are views of the buckets, so that they need no second copy in memory.
    wrapped = TimedAllReduce(
        model,
        own_time,
        bucket_cap_mb=config.allreduce_bucket_mb or None,
        device_ids=[group.device] if group.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        find_unused_parameters=task.find_unused_parameters,
        static_graph=task.static_graph and config.gradient_accumulation == 1 and not config.global_batch_size,
    )
    # Set afterwards, or PyTorch 2.11 would not send the first buffers. broadcast_statistics() sends the others.
    wrapped.broadcast_buffers = changes_buffers(task)
    if config.allreduce_precision == "bf16":
        wrapped.register_comm_hook(None, bf16_compress_hook)
    return wrapped


def uncompiled(config: TrainConfig) -> contextlib.AbstractContextManager[object]:
    """Return a context in which nothing is compiled, for batches of another size or mode than the first one: to compile
    a model again would take longer than they do."""
    return torch.compiler.set_stance("force_eager") if config.is_compiled else contextlib.nullcontext()


def changes_buffers(task: Task) -> bool:
    """Return True if a step may compute with buffers that differ between processes: with others than the statistics of
    normalizations, which only evaluation uses."""
    if task.broadcast_buffers is not None:
        return task.broadcast_buffers
    return any(
        True
        for module in task.model.modules()
        if not isinstance(module, _NormBase)
        for _ in module.buffers(recurse=False)
    )


def suitable_format(
    task: Task, config: TrainConfig, loader: Loader | StreamLoader, device: torch.device
) -> torch.memory_format | None:
    """Return the task's memory format, or by default one that suits the model, if there is any.

    channels_last speeds up 2-D convolutions.
    """
    suits = task.memory_format is None and _suits_channels_last(task.model, config, loader, device)
    return torch.channels_last if suits else task.memory_format


def _suits_channels_last(
    model: nn.Module, config: TrainConfig, loader: Loader | StreamLoader, device: torch.device
) -> bool:
    """Return True if a copy of the model works with channels_last. Some operations, such as view(), may not."""
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return False
    inputs = loader.first_inputs()
    if inputs is None:
        return False
    try:
        _try_channels_last(model, inputs, config, device)
    except Exception as error:  # noqa: BLE001 - if the model is at fault, the first step reports it
        log.info(
            "channels_last does not suit this model (%s): it keeps its memory format", str(error).partition("\n")[0]
        )
        return False
    return True


def _try_channels_last(model: nn.Module, inputs: Any, config: TrainConfig, device: torch.device) -> None:
    with torch.no_grad():
        trial = copy.deepcopy(model).to(memory_format=torch.channels_last)
        forward(trial, inputs, config, device)
