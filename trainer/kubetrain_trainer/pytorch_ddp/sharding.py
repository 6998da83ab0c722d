"""Sharding (FSDP): each process keeps a part of every parameter, of its gradient and of its optimizer's state."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.modules.batchnorm import _NormBase

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.pytorch_ddp.empty_models import fill
from kubetrain_trainer.pytorch_ddp.group import Group, collective_timeout
from kubetrain_trainer.pytorch_ddp.model_layers import forwarded, layers_of
from kubetrain_trainer.pytorch_ddp.precision import REDUCED, precision_of
from kubetrain_trainer.pytorch_ddp.task import Task


def is_sharded(config: TrainConfig, group: Group) -> bool:
    return config.sharding != "none" and group.role.world_size > 1


def shards(config: TrainConfig, group: Group) -> int:
    """Return how many processes hold one copy of the state together. They are the first ones."""
    if not is_sharded(config, group):
        return 1
    return group.role.world_size if config.sharding == "full" else group.role.local_world_size


def mesh_of(config: TrainConfig, group: Group) -> DeviceMesh:
    """Return the processes in two dimensions: those with the same part of the state, and those that share one copy."""
    ranks = torch.arange(group.role.world_size).view(-1, shards(config, group))
    timeout = collective_timeout(config)
    groups: list[Any] = [dist.new_subgroups_by_enumeration(each.tolist(), timeout)[0] for each in (ranks.t(), ranks)]
    if len(ranks) == 1:
        return DeviceMesh.from_group(groups[1], group.device.type)
    return DeviceMesh.from_group(groups, group.device.type, ranks, mesh_dim_names=("copy", "part"))


def shard(model: nn.Module, task: Task, config: TrainConfig, group: Group, mesh: DeviceMesh) -> None:
    """Leave this process its part of each parameter. Those of a layer are brought together while it computes.

    A model without content gets its first weights here, layer by layer, so that no process ever holds all of them.
    """
    policy = policy_of(config, group.device)
    for root in forwarded(model, task):
        # Normalizations with statistics in fp32 compute only with weights in fp32.
        statistics: list[nn.Module] = [
            each for each in root.modules() if isinstance(each, _NormBase) and [*each.parameters()]
        ]
        apart = statistics if policy.param_dtype else []
        fill_and_shard(apart, mesh, MixedPrecisionPolicy(cast_forward_inputs=False), config, group)
        layers = [each for each in layers_of(root, task) if each is not root and each not in apart]
        fill_and_shard([*layers, *[root] * (root not in apart)], mesh, policy, config, group)


def fill_and_shard(
    modules: list[nn.Module], mesh: DeviceMesh, policy: MixedPrecisionPolicy, config: TrainConfig, group: Group
) -> None:
    for module in modules:
        fill(module, group.device)
        if config.compile:
            module.compile()
        fully_shard(module, mesh=mesh, mp_policy=policy)


def policy_of(config: TrainConfig, device: torch.device) -> MixedPrecisionPolicy:
    """Return how weights are brought together: in the precision of the computation, or autocast would keep a copy of
    each until the backward pass."""
    return MixedPrecisionPolicy(
        param_dtype=REDUCED.get(precision_of(config, device)),
        reduce_dtype=torch.bfloat16 if config.exchange_precision == "bf16" else torch.float32,
        cast_forward_inputs=False,
    )


@contextlib.contextmanager
def without_exchange(model: nn.Module) -> Iterator[None]:
    """Add up gradients in this process alone."""
    sharded = [each for each in model.modules() if isinstance(each, FSDPModule)]
    for each in sharded:
        each.set_requires_gradient_sync(False, recurse=False)
    with getattr(model, "no_sync", contextlib.nullcontext)():
        yield
    for each in sharded:
        each.set_requires_gradient_sync(True, recurse=False)
