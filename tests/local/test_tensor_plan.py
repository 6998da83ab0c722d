"""Plans that say how processes compute the layers of a model together."""

from typing import Any

import pytest
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel

from kubetrain_trainer import Task
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.pytorch_ddp.group import tensor_parallel_size
from kubetrain_trainer.pytorch_ddp.shard_model import Whole, styles_of
from kubetrain_trainer.settings.config import TrainConfig


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Parameter(nn.Linear(2, 2).weight), nn.Linear(2, 2)


def styles(model: nn.Module, plan: dict[str, Any]) -> dict[str, str]:
    task = Task(model=model, data=lambda split: [], loss=lambda outputs, targets: outputs, tensor_plan=plan)
    names = {module: name for name, module in model.named_modules()}
    return {names[module]: type(style).__name__ for module, style in styles_of(model, task).items()}


def test_what_the_plan_leaves_out_is_computed_whole() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))
    expected = {"2.0": "ColwiseParallel", "0": Whole.__name__, "2.1": Whole.__name__}
    assert styles(model, {"2.0": ColwiseParallel()}) == expected
    assert styles(model, {"*.0": ColwiseParallel()}) == expected


def test_a_plan_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"the model has no module 'blocks.\*'"):
        styles(nn.Linear(2, 2), {"blocks.*": ColwiseParallel()})
    with pytest.raises(InvalidSetting, match=r"'0.table', which belongs to a module with others inside"):
        styles(nn.Sequential(Positions()), {"0.inner": ColwiseParallel()})
    with pytest.raises(InvalidSetting, match=r"no style covers '1.weight', which belongs to a module with buffers"):
        styles(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), {"0": ColwiseParallel()})


def test_the_processes_of_a_pod_are_divided_evenly() -> None:
    assert tensor_parallel_size(TrainConfig(tensor_parallel=2, sharding="full"), ProcessRole(local_world_size=8)) == 2
    with pytest.raises(InvalidSetting, match="tensor_parallel must divide the 8 processes of a pod, not 3"):
        tensor_parallel_size(TrainConfig(tensor_parallel=3, sharding="full"), ProcessRole(local_world_size=8))
    with pytest.raises(InvalidSetting, match="tensor_parallel is for PyTorch and needs sharding"):
        TrainConfig(tensor_parallel=2)
