"""The model as each process trains it: wrapped to average its gradients over all processes."""

import contextlib

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.modules.batchnorm import _NormBase

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.own_time import OwnTime
from kubetrain_trainer.pytorch_ddp.group import Group
from kubetrain_trainer.pytorch_ddp.sharding import is_sharded
from kubetrain_trainer.pytorch_ddp.task import Task
from kubetrain_trainer.pytorch_ddp.timed_exchange import TimedExchange


def data_parallel(config: TrainConfig, task: Task, group: Group, own_time: OwnTime) -> nn.Module:
    """Wrap the model, or each of several models if the task has its own step, and compile it if `compile` is set.

    A model that is sharded exchanges its gradients itself.
    """
    if is_sharded(config, group):
        return task.model
    if task.step and isinstance(task.model, nn.ModuleDict):
        return nn.ModuleDict({name: _wrapped(each, config, task, group, own_time) for name, each in task.model.items()})
    return _wrapped(task.model, config, task, group, own_time)


def _wrapped(model: nn.Module, config: TrainConfig, task: Task, group: Group, own_time: OwnTime) -> nn.Module:
    if config.compile:
        model.compile(mode=config.compile_mode)
    is_trained = any(parameter.requires_grad for parameter in model.parameters())
    if group.role.world_size == 1 or not is_trained:
        return model
    wrapped = TimedExchange(
        model,
        own_time,
        bucket_cap_mb=config.exchange_mb or None,
        device_ids=[group.device] if group.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        find_unused_parameters=task.find_unused_parameters,
        static_graph=task.static_graph and config.accumulate == 1 and not config.global_batch_size,
    )
    # Set afterwards, or PyTorch 2.11 would not send the first buffers. broadcast_statistics() sends the others.
    wrapped.broadcast_buffers = changes_buffers(task)
    if config.exchange_precision == "bf16":
        wrapped.register_comm_hook(None, bf16_compress_hook)
    return wrapped


def uncompiled(config: TrainConfig) -> contextlib.AbstractContextManager[object]:
    """Return a context in which nothing is compiled, for batches of another size or mode than the first one: to compile
    a model again would take longer than they do."""
    return torch.compiler.set_stance("force_eager") if config.compile else contextlib.nullcontext()


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
