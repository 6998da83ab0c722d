"""TrainConfig converts to JSON and flags and back, and rejects invalid values."""

import argparse
import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.augmentation import Recipe
from kubetrain_trainer.settings.base import Settings, setting
from kubetrain_trainer.settings.config import GROUPS, TrainConfig
from kubetrain_trainer.settings.config_checks import check_framework
from kubetrain_trainer.settings.optimizer_args import OPTIMIZERS
from kubetrain_trainer.settings.schedule_args import SCHEDULES
from kubetrain_trainer.settings.synthetic_data import SyntheticData


def from_flags(*flags: str) -> TrainConfig:
    parser = argparse.ArgumentParser()
    TrainConfig.add_flags(parser)
    return TrainConfig.from_flags(parser.parse_args(list(flags)))


CHANGED = TrainConfig(
    model="torchvision:resnet50", model_args={"norm": None, "n": 2}, epochs=90, learning_rate=0.4, metric="min:accuracy"
)


def test_json_and_back() -> None:
    assert TrainConfig.from_dict(json.loads(json.dumps(CHANGED.to_dict()))) == CHANGED


def test_flags_and_back() -> None:
    assert from_flags(*CHANGED.to_flags()) == CHANGED


def test_flags_name_only_what_differs_from_the_defaults() -> None:
    assert TrainConfig().to_flags() == ()
    assert TrainConfig(epochs=3).to_flags() == ("--epochs", "3")


def test_integral_floats_are_accepted_as_kfp_local_sends_them() -> None:
    sent = {"epochs": 3.0, "learning_rate": 1, "model_args": {"layers": 2.0, "sizes": [1.0, 0.5]}}
    config = TrainConfig.from_dict(sent)
    assert (config.epochs, config.learning_rate) == (3, 1.0)
    assert json.dumps(config.model_args) == '{"layers": 2, "sizes": [1, 0.5]}'


def test_equal_settings_have_the_same_digest_from_json_and_flags() -> None:
    assert TrainConfig.from_dict({"epochs": 3.0}).digest == from_flags("--epochs", "3").digest
    assert TrainConfig(epochs=3).digest != TrainConfig(epochs=4).digest


def test_an_added_setting_changes_no_digest() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Later(TrainConfig):
        added: int = setting(0, "a setting of a later version")

    assert Later(epochs=3).digest == TrainConfig(epochs=3).digest
    assert Later(epochs=3, added=1).digest != TrainConfig(epochs=3).digest


SHARDED_GRAPHS = (
    "train.compile=reduce-overhead needs train.sharding=none, under which weights keep their place in memory"
)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epoch": 3}, "unknown setting 'train.epoch': did you mean 'epochs'?"),
        ({"compile": "reduce-overhead", "sharding": "full"}, SHARDED_GRAPHS),
        ({"epochs": "three"}, "train.epochs must be a whole number, not 'three'"),
        ({"epochs": 2.5}, "train.epochs must be a whole number, not 2.5"),
        ({"epochs": True}, "train.epochs must be a whole number, not True"),
        ({"epochs": 0}, "train.epochs must be at least 1, not 0"),
        ({"learning_rate": 0}, "train.learning_rate must be above 0, not 0"),
        ({"learning_rate": float("nan")}, "train.learning_rate must be a number, not nan"),
        (
            {"optimizer_args": {"momentum": 1}},
            "train.optimizer_args.momentum must be at most 0.999999, not 1 (with optimizer=sgd)",
        ),
        (
            {"optimizer_args": {"beta1": 0.8}},
            "unknown setting 'train.optimizer_args.beta1': valid names: decay_norms, momentum, nesterov "
            "(with optimizer=sgd)",
        ),
        (
            {"schedule": "constant", "schedule_args": {"epochs": 1}},
            "unknown setting 'train.schedule_args.epochs': valid names: warmup_steps (with schedule=constant)",
        ),
        ({"data": "synthetic", "synthetic": {"classes": 1}}, "data.synthetic.classes must be at least 2, not 1"),
        ({"augment": {"mixup": -0.1}}, "train.augment.mixup must be at least 0, not -0.1"),
        ({"freeze": ","}, "train.freeze is ',', which names nothing: give names of layers, or leave it out"),
        ({"seed": 2**32}, "train.seed must be at most 4294967295, not 4294967296"),
        ({"resume_from": "../other"}, "train.resume_from must be the id of another run, not the path '../other'"),
        ({"resume_from": ".."}, "train.resume_from must be the id of another run, not the path '..'"),
        ({"optimizer": "sdg"}, "train.optimizer cannot be 'sdg': did you mean 'sgd'?"),
        ({"model": 3}, "model.name must be a string, not 3"),
        ({"model_args": [1]}, "model.args must be a JSON object, not [1]"),
        ([1], "train must be an object of settings, not [1]"),
    ],
)
def test_an_invalid_setting_is_named_with_its_value_and_the_fix(settings: object, message: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        TrainConfig.from_dict(settings)
    assert str(caught.value) == message


def test_text_on_the_command_line_is_parsed_by_the_type_of_its_setting() -> None:
    assert TrainConfig.parse("model", "3") == "3"
    assert TrainConfig.parse("epochs", "3") == 3
    assert TrainConfig.parse("model_args", '{"a": 1}') == {"a": 1}
    with pytest.raises(InvalidSetting, match=r"model\.args must be a JSON object, not 'a=1'"):
        TrainConfig.parse("model_args", "a=1")


@pytest.mark.parametrize(
    ("metric", "best_by"),
    [
        ("accuracy", ("accuracy", "max")),
        ("loss", ("loss", "min")),
        ("mean_absolute_error", ("mean_absolute_error", "min")),
        ("top5_accuracy", ("top5_accuracy", "max")),
        ("min:perplexity", ("perplexity", "min")),
        ("max:mAP:50", ("mAP:50", "max")),
        ("test:loss", ("test:loss", "min")),
        ("max:loss", ("loss", "max")),
        ("min:accuracy", ("accuracy", "min")),
    ],
)
def test_a_lower_loss_or_error_is_better_unless_set_otherwise(metric: str, best_by: tuple[str, str]) -> None:
    assert TrainConfig(metric=metric).best_by == best_by


@pytest.mark.parametrize("metric", ["perplexity", "mae", "wer", "lossless", "f1", "maximum:f1", "max:", ""])
def test_another_metric_needs_its_direction(metric: str) -> None:
    with pytest.raises(InvalidSetting, match=f"a high or a low '{metric}' is better: .* max:{metric} or min:{metric}"):
        TrainConfig(metric=metric)
    assert TrainConfig(metric=metric, select_checkpoint="last").best_by == (metric, "")


def test_the_metric_must_be_one_that_the_task_measures() -> None:
    TrainConfig(metric="loss").check_metric(["accuracy"])
    TrainConfig(metric="f1", select_checkpoint="last").check_metric(["accuracy"])
    with pytest.raises(InvalidSetting, match=r"train.metric cannot be 'acuracy', .*: did you mean 'accuracy'"):
        TrainConfig(metric="max:acuracy").check_metric(["accuracy"])
    with pytest.raises(
        InvalidSetting, match=r"train.metric cannot be 'accuracy', .*: set train.metric=loss, or add it to the"
    ):
        TrainConfig().check_metric([])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"allreduce_precision": "bf16"}, "train.allreduce_precision=bf16"),
        ({"compile": "reduce-overhead"}, "train.compile=reduce-overhead"),
        ({"loader_workers": 4}, "train.loader_workers"),
        ({"weights_format": "safetensors"}, "train.weights_format"),
    ],
)
def test_what_only_pytorch_has_is_refused_by_tensorflow(settings: dict[str, Any], named: str) -> None:
    config = TrainConfig.from_dict(settings)
    check_framework("pytorch", config)
    with pytest.raises(InvalidSetting, match=f"^{named} is for PyTorch: this training uses TensorFlow$"):
        check_framework("tensorflow", config)


@pytest.mark.parametrize("kind", [TrainConfig, SyntheticData, Recipe, *OPTIMIZERS.values(), *SCHEDULES.values()])
def test_a_meaning_leaves_to_the_declaration_when_a_setting_applies(kind: type[Settings]) -> None:
    for name in kind.names():
        meaning = kind.declared(name)["meaning"]
        assert not re.match(r"\(?(PyTorch|TensorFlow)\b|\w+=\w+:", meaning), f"{name}: give `only` or `used_with`"


def test_a_declaration_names_settings_and_values_that_exist() -> None:
    for name in TrainConfig.names():
        declared = TrainConfig.declared(name)
        other, value = declared["used_with"] or (name, None)
        assert value is None or value in TrainConfig.declared(other)["choices"]
        assert {*declared["pytorch_choices"]} <= {*declared["choices"]}
        assert declared["only"] in ("", "pytorch", "tensorflow")
        assert declared["entry"] in ("", "used", "refused")


def test_every_setting_is_in_a_group() -> None:
    assert TrainConfig.names() == [name for group in GROUPS.values() for name in group.names()]
