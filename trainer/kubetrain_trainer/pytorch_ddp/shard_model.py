"""Shard a model over processes that keep a shard of each layer (FSDP) or compute it together (tensor parallelism).

This module takes a second to import, and only sharded trainings need it.
"""

from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_map_only

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.pytorch_ddp.group import Group, collective_timeout
from kubetrain_trainer.pytorch_ddp.layers import called_modules, layers_of
from kubetrain_trainer.pytorch_ddp.model import fill
from kubetrain_trainer.pytorch_ddp.precision import REDUCED, precision_of
from kubetrain_trainer.pytorch_ddp.sharding import is_dtensor, shards
from kubetrain_trainer.pytorch_ddp.structures import as_bytes
from kubetrain_trainer.pytorch_ddp.task import Task
from kubetrain_trainer.settings.config import TrainConfig

WITH_STATISTICS = MixedPrecisionPolicy(cast_forward_inputs=False)
Styles = dict[nn.Module, ParallelStyle]


def mesh_of(config: TrainConfig, group: Group) -> DeviceMesh:
    """Return the processes in up to three dimensions, the last one with ranks in sequence.

    "replicate": they hold copies of the same shards (HSDP); "shard": of different shards (FSDP), and train on other
    samples; "tensor": they compute the same samples, each with its slice of the weights.
    """
    copies, count = group.role.world_size // shards(config, group), shards(config, group) // group.tensor_parallel
    sizes = {"replicate": copies, "shard": count, "tensor": group.tensor_parallel}
    names = tuple(name for name, size in sizes.items() if size > 1 or name == "shard")
    ranks = torch.arange(group.role.world_size).view([sizes[name] for name in names])
    groups = [lines_through(ranks, dimension, collective_timeout(config)) for dimension in range(len(names))]
    return DeviceMesh.from_group(groups, group.device.type, ranks, mesh_dim_names=names)


def lines_through(ranks: Tensor, dimension: int, timeout: timedelta) -> Any:
    """Create the groups of ranks that differ in one dimension only, and return that of this process."""
    lines = ranks.movedim(dimension, -1).reshape(-1, ranks.shape[dimension])
    return dist.new_subgroups_by_enumeration(lines.tolist(), timeout)[0]


def shard(model: nn.Module, task: Task, config: TrainConfig, group: Group, mesh: DeviceMesh) -> None:
    """Leave this process its shard of each parameter. Those of a layer are all-gathered while it computes.

    A model without content gets its first weights here, layer by layer, so that no process ever holds all of them.
    """
    policy = policy_of(config, group.device)
    for root in called_modules(model, task):
        styles = styles_of(root, task) if group.tensor_parallel > 1 else {}
        units = units_of(root, task)
        check_shared(root, units, is_split=bool(styles))
        root.to(memory_format=torch.contiguous_format)
        for module in units:
            # Tensor parallelism comes first: FSDP then shards the slices that it leaves to this process.
            fill(module, group.device)
            broadcast_weights(module)
            if styles:
                split(module, styles, mesh["tensor"])
            if config.is_compiled:
                module.compile()
            # Normalizations with statistics in fp32 compute only with weights in fp32.
            used = WITH_STATISTICS if isinstance(module, _NormBase) else policy
            # A step of the task's own may call a model without a backward pass, after which its weights would stay.
            gives_back = True if task.step else None
            fully_shard(module, mesh=data_parallel_mesh(mesh), mp_policy=used, reshard_after_forward=gives_back)


def units_of(root: nn.Module, task: Task) -> list[nn.Module]:
    """Return the modules whose weights are all-gathered at once, those inside others first.

    fully_shard() leaves out what has been sharded before, so an outer module gets the parameters that no layer has.
    """
    depth = {module: len(name.split(".")) for name, module in root.named_modules() if name}
    inner = dict.fromkeys([*batch_norms(root), *layers_of(root, task)])  # in the same order in every process
    return [*sorted((module for module in inner if module is not root), key=lambda module: -depth[module]), root]


def check_shared(root: nn.Module, units: list[nn.Module], *, is_split: bool) -> None:
    """
    Raises:
        InvalidSetting: for a parameter of several modules that would become several parameters.
    """
    unit_of: dict[nn.Module, nn.Module] = {}
    for unit in units:
        for module in unit.modules():
            unit_of.setdefault(module, unit)
    first: dict[int, tuple[str, nn.Module]] = {}
    for name, parameter in root.named_parameters(remove_duplicate=False):
        unit = unit_of[root.get_submodule(name.rpartition(".")[0])]
        other, its_unit = first.setdefault(id(parameter), (name, unit))
        if other != name and (is_split or its_unit is not unit):
            needed = "train.tensor_parallel needs parameters of one module each"
            remedy = needed if is_split else "let both be in one layer"
            raise InvalidSetting(f"train.sharding cannot split '{name}', which is also '{other}': {remedy}")


def broadcast_weights(module: nn.Module) -> None:
    """Let all processes start with the same values, also where they draw others."""
    parameters = [parameter for parameter in module.parameters() if not is_dtensor(parameter)]
    for tensor in (*parameters, *module.buffers()):
        dist.broadcast(as_bytes(tensor.detach()), 0)


def batch_norms(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, _NormBase) and [*module.parameters()]]


def data_parallel_mesh(mesh: DeviceMesh) -> DeviceMesh:
    names = mesh.mesh_dim_names or ()
    return mesh["replicate", "shard"] if "replicate" in names else mesh["shard"]


def policy_of(config: TrainConfig, device: torch.device) -> MixedPrecisionPolicy:
    """Return the precision in which weights are all-gathered: that of the computation, or autocast would keep a copy
    of each until the backward pass. Gradients are reduced in fp32 unless allreduce_precision is bf16."""
    return MixedPrecisionPolicy(
        param_dtype=REDUCED.get(precision_of(config, device)),
        reduce_dtype=torch.bfloat16 if config.allreduce_precision == "bf16" else torch.float32,
        cast_forward_inputs=False,
    )


class Whole(ParallelStyle):
    """A module that each of the processes computes whole."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        whole = [Replicate()]

        def distributed(tensor: Tensor) -> Tensor:
            if isinstance(tensor, DTensor):
                return tensor
            return DTensor.from_local(tensor, device_mesh, whole, run_check=False)

        def local(tensor: DTensor) -> Tensor:
            return tensor.redistribute(placements=whole).to_local()

        def before(_: Any, inputs: Any, named: Any) -> Any:
            return tree_map_only(Tensor, distributed, (inputs, named))

        for name, parameter in module.named_parameters(recurse=False):
            spread = distribute_tensor(parameter, device_mesh, whole, src_data_rank=None)
            module.register_parameter(name, nn.Parameter(spread, parameter.requires_grad))
        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(lambda _, inputs, outputs: tree_map_only(DTensor, local, outputs))
        return module


def styles_of(model: nn.Module, task: Task) -> Styles:
    """Return how the task's plan computes each module. What it leaves out is computed whole.

    Raises:
        InvalidSetting: if the plan names what the model does not have, or leaves out what cannot be computed whole.
    """
    found: Styles = {}
    for pattern, style in (task.tensor_plan or {}).items():
        named = [module for name, module in model.named_modules() if fnmatchcase(name, pattern)]
        if not named:
            raise InvalidSetting(f"tensor_plan: the model has no module '{pattern}'")
        found |= dict.fromkeys(named, style)
    left_out = {name: module for name, module in model.named_modules() if module not in found and _direct_names(module)}
    for name, module in left_out.items():
        _check_whole(name, module)
    return found | {module: Whole() for module in left_out.values()}


def _direct_names(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters(recurse=False)]


def _check_whole(name: str, module: nn.Module) -> None:
    parameter = f"tensor_plan: no style covers '{name}.{_direct_names(module)[0]}', which belongs to a module with"
    if any(True for _ in module.children()):
        raise InvalidSetting(f"{parameter} others inside: move it to a module of its own")
    if any(True for _ in module.buffers(recurse=False)):
        raise InvalidSetting(f"{parameter} buffers: replace it by one without, such as a LayerNorm")


def split(module: nn.Module, styles: Styles, mesh: Any) -> None:
    """Leave this process its slice of the weights of the module, and of those inside, and forget their styles."""
    for inner in module.modules():
        if inner in styles:
            parallelize_module(inner, mesh, styles.pop(inner))
