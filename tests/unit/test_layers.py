"""Layers by the names of parameters: which are frozen, and how fast each learns."""

import pytest

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.layers import layers_by_name, matching, rate_factors, warn_of_slow_layers

RESNET = ("conv1.weight", "bn1.weight", "bn1.bias", "layer1.0.conv1.weight", "layer1.1.bn1.bias", "layer2.0.bn1.bias")


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("layer1.0.conv1.weight", "layer1"),
        ("features.5.2.block.1.weight", "features.5"),
        ("encoder.layers.encoder_layer_3.ln_1.weight", "encoder.layers.encoder_layer_3"),
        ("fc.weight", "fc"),
        ("heads.head.bias", "heads.head"),
        ("class_token", "class_token"),
        ("conv2_block1_1_conv/kernel", "conv2"),
        ("block_16_project/kernel", "block_16"),
        ("predictions/bias", "predictions"),
        ("2.weight", "2"),
        ("block1a_project_conv/kernel", "block1"),
        ("Mixed_5b.branch1x1.conv.weight", "Mixed_5"),
        ("Conv2d_1a_3x3.conv.weight", "Conv2d_1a_3x3"),
        ("conv2d_17/kernel", "conv2d_17"),
        ("conv2d/kernel", "conv2d"),
    ],
)
def test_a_layer_is_the_first_numbered_part_of_a_name(name: str, layer: str) -> None:
    assert layers_by_name([name]) == {name: layer}


@pytest.mark.parametrize(
    ("names", "layers"),
    [
        (
            ("dinov2.encoder.layer.0.a", "dinov2.encoder.layer.1.a"),
            ["dinov2.encoder.layer.0", "dinov2.encoder.layer.1"],
        ),
        (("resnet3d.layer1.0.a", "resnet3d.layer2.0.a"), ["resnet3d.layer1", "resnet3d.layer2"]),
        (("block1a_conv/a", "block1b_conv/a", "block2a_conv/a"), ["block1", "block1", "block2"]),
        (("dinov2.token", "dinov2.encoder.layer.0.a"), ["dinov2", "dinov2"]),
    ],
)
def test_a_number_in_the_name_of_a_model_makes_no_layer(names: tuple[str, ...], layers: list[str]) -> None:
    assert [*layers_by_name(names).values()] == layers


def test_each_layer_learns_slower_than_the_next() -> None:
    factors = rate_factors([*RESNET, "fc.weight", "fc.bias"], 0.5)
    assert [*factors.values()] == [1 / 16, 1 / 8, 1 / 8, 1 / 4, 1 / 4, 1 / 2, 1, 1]
    assert {*rate_factors(RESNET, 1.0).values()} == {1}


@pytest.mark.parametrize(("layers", "is_named"), [(30, False), (32, True)])
def test_layers_that_hardly_learn_are_named(layers: int, is_named: bool, caplog: pytest.LogCaptureFixture) -> None:
    factors = rate_factors([f"{number}.weight" for number in range(layers)], 0.8)
    warn_of_slow_layers(factors.values(), 0.8)
    assert ("at 1e-03 of the learning rate" in caplog.text) is is_named


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        ("", ()),
        ("layer1", RESNET[3:5]),
        ("bn1, layer2", (*RESNET[1:3], RESNET[5])),
        ("*.bias", (RESNET[2], *RESNET[4:])),
        ("layer?", RESNET[3:]),
    ],
)
def test_patterns_match_names_and_what_is_within_them(patterns: str, found: tuple[str, ...]) -> None:
    assert matching(patterns, RESNET) == {*found}


def test_a_pattern_without_a_match_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"freeze: the model has nothing called 'layer': did you mean 'layer[12]'"):
        matching("conv1,layer", RESNET)
    with pytest.raises(InvalidSetting, match=r"nothing called 'layer1\.2': did you mean 'layer1\.[01]'"):
        matching("layer1.2", RESNET)
    many = ["conv2d", "batch_normalization", *(f"conv2d_{number}" for number in range(1, 30))]
    with pytest.raises(
        InvalidSetting, match=r"called 'layer1': its names are such as conv2d, batch_normalization, conv2d_1$"
    ):
        matching("layer1", many)


def test_a_container_of_frozen_parameters_keeps_training_what_is_within() -> None:
    torch = pytest.importorskip("torch")
    from kubetrain_trainer.pytorch_ddp.layers import freeze

    class Container(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = torch.nn.Parameter(torch.zeros(2))
            self.body = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
            self.norm = torch.nn.BatchNorm1d(2)

    model = Container().train()
    freeze(model, "token,norm")
    assert (model.training, model.body[1].training, model.norm.training) == (False, True, False)
