"""Remarks on settings that are allowed, but hardly meant."""

from types import SimpleNamespace
from typing import Any

import pytest

from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.setting_warnings import training_warnings


def said(settings: dict[str, Any], *, peak_rate: float = 0.1, **own: object) -> list[str]:
    """Return the warnings of a training of two epochs with seven steps each."""
    task = SimpleNamespace(**{"optimizer": None, "schedule": None, **own})
    return [*training_warnings(TrainConfig.from_dict({"epochs": 2, **settings}), task, 14, peak_rate)]


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ({"max_steps": 20}, "the training ends after step 14, with train.epochs=2, before train.max_steps=20"),
        (
            {"schedule_args": {"warmup_steps": 15}},
            "train.schedule_args.warmup_steps=15 is more than the 14 steps of the training",
        ),
        ({"warmup_epochs": 2.5}, "train.warmup_epochs=2.5 is more than train.epochs=2"),
    ],
)
def test_settings_that_ask_for_a_longer_training_are_named(settings: dict[str, Any], warning: str) -> None:
    [only] = said(settings)
    assert only.startswith(warning)
    assert bool(said(settings, schedule=lambda step: 1.0)) is ("max_steps" in settings)


def test_settings_that_the_training_fills_are_not_named() -> None:
    assert not said({"max_steps": 14, "schedule_args": {"warmup_steps": 13}, "warmup_epochs": 5})


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ({"cache_gb": 7}, "data.cache_gb=7.0 has no effect: it is for data.delivery=cache, not volume"),
        (
            {"synthetic": {"classes": 4}},
            "data.synthetic={'classes': 4} has no effect: it is for data.format=synthetic, not image_folder",
        ),
    ],
)
def test_settings_of_another_choice_are_named(settings: dict[str, Any], warning: str) -> None:
    assert said(settings, peak_rate=0.001) == [warning]


def test_settings_of_the_choice_made_are_not_named() -> None:
    assert not said({"data": "synthetic", "synthetic": {"samples": 64, "classes": 4}})


def test_the_strength_of_operations_that_are_not_drawn_is_named() -> None:
    strength = {"augment": {"rand_augment_magnitude": 5}}
    assert said(strength) == ["train.augment.rand_augment_magnitude has no effect without rand_augment"]
    assert said({"recipe": "strong", "augment": {"rand_augment": 0, "rand_augment_magnitude": 5}}) == said(strength)
    assert not said({"augment": {"rand_augment": 1, "rand_augment_magnitude": 5}})
    assert not said({**strength, "recipe": "strong"})


def test_the_learning_rate_of_sgd_is_named_with_adamw() -> None:
    settings = {"optimizer": "adamw", "learning_rate": 0.1}
    assert said(settings, peak_rate=0.2) == [
        "the learning rate rises to 0.2, which is high for adamw: set train.learning_rate, such as to 0.001 "
        "(now 0.1, for a global batch of 64)"
    ]
    assert not said(settings, peak_rate=0.01)
    assert not said(settings, peak_rate=0.2, optimizer=print)
    assert not said({}, peak_rate=0.2)
