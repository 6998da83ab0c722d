"""Tensor parallelism: processes that compute each layer together, each with a part of its weights."""

from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module
from torch.utils._pytree import tree_map_only

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.pytorch_ddp.task import Task

Styles = dict[nn.Module, ParallelStyle]


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
    left_out = {name: each for name, each in model.named_modules() if each not in found and _own(each)}
    for name, module in left_out.items():
        _check_whole(name, module)
    return found | {module: Whole() for module in left_out.values()}


def _own(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters(recurse=False)]


def _check_whole(name: str, module: nn.Module) -> None:
    parameter = f"tensor_plan: no style covers '{name}.{_own(module)[0]}', which belongs to a module with"
    if any(True for _ in module.children()):
        raise InvalidSetting(f"{parameter} others inside: move it to a module of its own")
    if any(True for _ in module.buffers(recurse=False)):
        raise InvalidSetting(f"{parameter} buffers: replace it by one without, such as a LayerNorm")


def split(module: nn.Module, styles: Styles, mesh: Any) -> None:
    """Leave this process its part of the weights of the module, and of those inside, and forget their styles."""
    for each in module.modules():
        if each in styles:
            parallelize_module(each, mesh, styles.pop(each))
