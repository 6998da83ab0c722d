"""The operations that a model computes for a sample, counted without computing any."""

from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from kubetrain_trainer.processes.resources import peak_operations
from kubetrain_trainer.pytorch_ddp.operations import operations_per_sample


class Pair(nn.Module):
    """Returns a part that needs no gradient too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.Dropout(), nn.Linear(32, 8))

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Any]:
        scores = self.layers(inputs["values"])
        return {"scores": scores, "best": scores.argmax(dim=1)}


class Curious(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.sum() if inputs.sum() > 0 else inputs


def test_those_of_products_are_counted_exactly() -> None:
    count = operations_per_sample(Pair(), {"values": torch.zeros(2, 64)}, 2)
    forward, backward = 2 * (64 * 32 + 32 * 8), 2 * (64 * 32 + 2 * 32 * 8)  # the inputs need no gradient
    assert count == forward + backward


def test_those_of_a_resnet_are_about_three_times_those_of_its_forward_pass() -> None:
    model = torchvision.models.resnet18().to(memory_format=torch.channels_last)
    model.compile()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    count = operations_per_sample(model, torch.zeros(2, 3, 224, 224), 2)
    assert count == pytest.approx(3 * 2 * 1.81e9, rel=0.03)
    torch.testing.assert_close(dict(model.state_dict()), before, msg="the model is as it was")
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_those_of_convolutions_with_groups() -> None:
    depthwise = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ConvTranspose2d(8, 4, 2, 2)
    )
    forward = [2 * 3 * 8 * 100, 2 * 9 * 8 * 100, 2 * 8 * 4 * 4 * 100]
    count = operations_per_sample(depthwise, torch.zeros(2, 3, 10, 10), 2)
    assert count == 3 * sum(forward) - forward[0]  # the inputs need no gradient


class Caching(nn.Module):
    """Keeps a mask from its first call, as models of texts do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.mask: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = torch.ones(4, device=inputs.device)
        return self.layer(inputs) * self.mask


def test_what_a_model_keeps_from_its_first_call_is_left_alone() -> None:
    model = Caching()
    assert operations_per_sample(model, torch.zeros(2, 4), 2) == 2 * 2 * 16
    assert model.mask is None
    assert model(torch.ones(2, 4)).isfinite().all()


def test_a_model_that_looks_at_its_values_has_no_count() -> None:
    assert operations_per_sample(Curious(), torch.ones(2, 3), 2) == 0


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("Tesla T4", 65e12),
        ("NVIDIA T400", 0),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 0),
    ],
)
def test_gpus_by_name(name: str, peak: float) -> None:
    assert peak_operations(name) == peak
