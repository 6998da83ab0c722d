"""The layers of a model, and models that are built without content."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from kubetrain_trainer import Task
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.pytorch_ddp.initial_weights import load_initial_weights
from kubetrain_trainer.pytorch_ddp.layers import layers_of, recompute_activations
from kubetrain_trainer.pytorch_ddp.model import fill
from kubetrain_trainer.pytorch_ddp.shard_model import check_shared, units_of
from kubetrain_trainer.pytorch_ddp.state_files import load_tensors
from kubetrain_trainer.pytorch_ddp.training import check_recomputable, warn_without_layers
from kubetrain_trainer.settings.config import TrainConfig
from support.training import FakeGroup

CPU = torch.device("cpu")


def task_of(model: nn.Module, **parts: Any) -> Task:
    return Task(model=model, data=lambda split: [], loss=lambda outputs, targets: outputs, **parts)


class Counting(nn.Linear):
    calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(inputs).tanh()


def stacked() -> nn.ModuleDict:
    blocks = nn.ModuleList(nn.Sequential(Counting(3, 3), nn.Dropout(0.5)) for _ in range(2))
    return nn.ModuleDict({"first": Counting(3, 3), "blocks": nn.Sequential(*blocks, nn.Tanh()), "last": Counting(3, 1)})


def test_the_layers_are_the_members_of_the_outermost_lists_unless_the_task_names_others() -> None:
    model = stacked()
    assert layers_of(model, task_of(model)) == [model["blocks"][0], model["blocks"][1]]
    assert layers_of(model, task_of(model, layers=lambda own: [own["last"]])) == [model["last"]]


def test_lists_of_lists_are_not_layers() -> None:
    model = nn.ModuleList([nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]), nn.ModuleList([nn.Linear(2, 2)])])
    assert layers_of(model, task_of(model)) == [model[0][0], model[0][1], model[1][0]]


def test_activations_are_computed_again_with_the_same_dropout() -> None:
    def gradients(again: bool) -> tuple[list[Tensor], list[int]]:
        torch.manual_seed(3)
        model = stacked()
        if again:
            recompute_activations(model, task_of(model))
        outputs = torch.ones(5, 3)
        for each in model.values():
            outputs = each(outputs)
        outputs.sum().backward()
        counted = [each for each in model.modules() if isinstance(each, Counting)]
        return [each.grad for each in model.parameters() if each.grad is not None], [each.calls for each in counted]

    (kept, once), (computed, twice) = gradients(again=False), gradients(again=True)
    assert (once, twice) == ([1, 1, 1, 1], [1, 2, 2, 1])
    assert len(kept) == len(computed) == 8
    for one, other in zip(kept, computed, strict=True):
        torch.testing.assert_close(one, other)


def test_running_statistics_count_each_batch_once() -> None:
    def statistics(again: bool) -> dict[str, Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), nn.BatchNorm1d(3, momentum=None))
        if again:
            recompute_activations(model, task_of(model))
        for _ in range(2):
            model(torch.randn(5, 3)).sum().backward()
        return dict(model.named_buffers())

    kept, computed = statistics(again=False), statistics(again=True)
    assert computed["0.1.num_batches_tracked"] == 2
    torch.testing.assert_close(computed, kept)


def compiled(layer: nn.Module) -> nn.Module:
    model = nn.Sequential(layer)
    recompute_activations(model, task_of(model))
    model.compile(backend="aot_eager")
    return model


def test_layers_that_are_computed_again_can_be_compiled() -> None:
    compiled(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)))(torch.ones(5, 3)).sum().backward()


def test_layers_with_statistics_that_are_computed_again_cannot_be_compiled() -> None:
    task = task_of(nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))))
    config = TrainConfig(model="own:build", compile="default", activation_checkpointing=True)
    with pytest.raises(
        InvalidSetting, match=r"train\.compile=default cannot be .* train\.activation_checkpointing=true"
    ):
        check_recomputable(task, config, FakeGroup(0, list))
    check_recomputable(task_of(nn.Sequential(nn.Linear(3, 3))), config, FakeGroup(0, list))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)


def test_a_model_without_layers_is_named_if_they_are_needed(caplog: pytest.LogCaptureFixture) -> None:
    config, group = TrainConfig(model="own:build", activation_checkpointing=True), FakeGroup(0, list)
    warn_without_layers(task_of(nn.Sequential(Pair())), config, group)
    warn_without_layers(task_of(Pair()), TrainConfig(model="own:build"), group)
    assert not caplog.text
    warn_without_layers(task_of(Pair()), config, group)
    assert "no list or sequence of layers, which activation_checkpointing would take" in caplog.text


def test_weights_of_old_files_lack_the_number_of_batches(tmp_path: Path) -> None:
    one, other = (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)) for _ in range(2))
    state = {name: value for name, value in one.state_dict().items() if not name.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "old.pt")
    load_initial_weights(tmp_path / "old.pt", other)
    torch.testing.assert_close(other.state_dict(), one.state_dict())
    del state["0.bias"]
    torch.save(state, tmp_path / "incomplete.pt")
    with pytest.raises(InvalidSetting, match=r"0\.bias is missing there and \(3,\) here"):
        load_initial_weights(tmp_path / "incomplete.pt", other)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.scores = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.scores.weight = self.words.weight
        self.norm, self.attention = nn.BatchNorm1d(3), nn.MultiheadAttention(3, 1)


def test_a_model_without_content_is_filled_and_stays_tied() -> None:
    with torch.device("meta"):
        model = Tied()
    model.norm.weight.requires_grad_(False)
    fill(model, CPU)
    assert model.scores.weight is model.words.weight
    assert model.words.weight.std() > 0
    assert model.attention.in_proj_weight.std() > 0
    assert not model.attention.out_proj.bias.any(), "as its constructor sets it"
    assert model.norm.running_var.tolist() == [1, 1, 1]
    assert not model.norm.weight.requires_grad


def test_a_model_with_content_keeps_it() -> None:
    model = Tied()
    before = model.words.weight.clone()
    fill(model, CPU)
    assert torch.equal(model.words.weight, before)


def test_a_module_that_cannot_fill_itself_is_named() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("angles", torch.zeros(3))

    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2), Table())
    with pytest.raises(KubetrainError, match=r"its Table cannot fill its own tensors: give it a method reset_param"):
        fill(model, CPU)


def test_parameters_that_splitting_would_untie_are_refused() -> None:
    def check(*, in_layers: bool, is_split: bool) -> None:
        model = nn.ModuleDict({"tied": Tied(), "layers": nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])})
        if in_layers:
            model["layers"][1].weight = model["layers"][0].weight
        check_shared(model, units_of(model, task_of(model)), is_split=is_split)

    check(in_layers=False, is_split=False)
    with pytest.raises(InvalidSetting, match=r"'layers\.1\.weight', which is also 'layers\.0\.weight'"):
        check(in_layers=True, is_split=False)
    with pytest.raises(InvalidSetting, match=r"'tied\.scores\.weight', which is also 'tied\.words\.weight'"):
        check(in_layers=False, is_split=True)


def test_the_versions_of_modules_are_loaded_too() -> None:
    model = torchvision.models.mnasnet0_5()  # it refuses a state without
    load_tensors(model, [model.state_dict()])
