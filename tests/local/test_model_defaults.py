"""The memory format of your own model, and what its processes exchange in each step, are chosen as for one by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.pytorch_ddp.data_parallel import changes_buffers, suitable_format
from kubetrain_trainer.pytorch_ddp.loading import Loader
from kubetrain_trainer.pytorch_ddp.task import Task, build_task
from kubetrain_trainer.settings.config import TrainConfig

CPU = torch.device("cpu")


class Images:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((3, 8, 8), float(index)), 0


class Viewing(nn.Module):
    """Works in the usual memory format only, and only in training."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)

    def forward(self, images: Tensor) -> Tensor:
        features = self.convolution(images)
        return features.view(len(images), -1) if self.training else features.flatten(1)


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten())


def task_of(model: nn.Module, **parts: Any) -> Task:
    return Task(model=model, data=lambda split: Images(), loss=lambda outputs, targets: outputs, **parts)


@pytest.mark.parametrize(
    ("model", "wanted", "expected"),
    [
        (convolutional(), None, torch.channels_last),
        (convolutional(), torch.contiguous_format, torch.contiguous_format),
        (Viewing(), None, None),
        (Viewing(), torch.channels_last, torch.channels_last),
    ],
)
def test_convolutions_are_channels_last_if_the_model_works_with_it(
    model: nn.Module, wanted: torch.memory_format | None, expected: torch.memory_format | None
) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = TrainConfig(precision="fp32")
    loader = Loader(Images(), config, ProcessRole(), CPU)
    assert suitable_format(task_of(model, memory_format=wanted), config, loader, CPU) is expected
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), (
        "the trial left no trace"
    )
    assert model.training


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(3))


@pytest.mark.parametrize(
    ("model", "wanted", "expected"),
    [
        (convolutional(), None, False),
        (convolutional(), True, True),
        (nn.Sequential(convolutional(), Table()), None, True),
        (nn.Sequential(convolutional(), Table()), False, False),
    ],
)
def test_only_buffers_that_a_step_may_use_are_exchanged_in_each(
    model: nn.Module, wanted: bool | None, expected: bool
) -> None:
    assert changes_buffers(task_of(model, broadcast_buffers=wanted)) == expected


def test_models_by_name_say_all_of_it(tmp_path: Path) -> None:
    task = build_task(TrainConfig(data="synthetic"), tmp_path)
    assert (task.memory_format, task.broadcast_buffers, task.static_graph) == (torch.channels_last, False, True)
