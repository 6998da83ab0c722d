"""Tensor parallelism: processes that compute each layer together, each with a part of its weights."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module
from torch.utils._pytree import tree_map_only

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.pytorch_ddp.task import Task

Styles = Mapping[nn.Module, ParallelStyle]


class Whole(ParallelStyle):
    """A module that each of the processes computes whole."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        whole = [Replicate()]

        def distributed(tensor: Tensor) -> DTensor:
            return DTensor.from_local(tensor, device_mesh, whole, run_check=False)

        def local(tensor: DTensor) -> Tensor:
            return tensor.redistribute(placements=whole).to_local()

        for name, parameter in module.named_parameters(recurse=False):
            spread = distribute_tensor(parameter, device_mesh, whole, src_data_rank=None)
            module.register_parameter(name, nn.Parameter(spread, parameter.requires_grad))
        module.register_forward_pre_hook(lambda _, inputs: tree_map_only(Tensor, distributed, inputs))
        module.register_forward_hook(lambda _, inputs, outputs: tree_map_only(DTensor, local, outputs))
        return module


def styles_of(model: nn.Module, task: Task) -> Styles:
    """Return how the task's plan computes each module. What it leaves out is computed whole.

    Raises:
        InvalidSetting: if the plan names what the model does not have, or leaves out what cannot be computed whole.
    """
    found: dict[nn.Module, ParallelStyle] = {}
    for pattern, style in (task.tensor_plan or {}).items():
        named = [module for name, module in model.named_modules() if fnmatchcase(name, pattern)]
        if not named:
            raise InvalidSetting(f"tensor_plan: the model has no module '{pattern}'")
        found |= dict.fromkeys(named, style)
    return found | {module: Whole() for name, module in model.named_modules() if _is_left_out(name, module, found)}


def _is_left_out(name: str, module: nn.Module, found: Styles) -> bool:
    own = [each for each, _ in module.named_parameters(recurse=False)]
    if not own or module in found:
        return False
    if any(True for _ in module.children()):
        raise InvalidSetting(
            f"tensor_plan: '{name}.{own[0]}' belongs to a module with others inside, which no style covers: move it to "
            "a module of its own"
        )
    return True


def split(module: nn.Module, styles: Styles, mesh: Any) -> None:
    """Leave this process its part of the weights of the module, and of those inside."""
    for each in module.modules():
        if each in styles and not any(isinstance(parameter, DTensor) for parameter in each.parameters(recurse=False)):
            parallelize_module(each, mesh, styles[each])
