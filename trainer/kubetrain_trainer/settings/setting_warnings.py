"""Warnings of settings that are allowed, but hardly meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.data_settings import ImageSettings
from kubetrain_trainer.settings.model_names import is_import_path

UNREACHED = "the learning rate will not reach its peak"
HIGH_FOR_ADAMW = 0.03


def training_warnings(config: TrainConfig, task: Any, last_step: int, peak_rate: float) -> Iterator[str]:
    """Say which settings change nothing, or ask for more than a training that ends with this step gives."""
    if config.max_steps > last_step:
        ends = f"with train.epochs={config.epochs}, before train.max_steps={config.max_steps}"
        yield f"the training ends after step {last_step}, {ends}"
    if not task.schedule:
        yield from _warmup_warnings(config, last_step)
    if not task.optimizer:
        yield from _rate_warnings(config, peak_rate)
    yield from _unused_settings(config)


def _warmup_warnings(config: TrainConfig, last_step: int) -> Iterator[str]:
    warmup_steps = config.scheduling.warmup_steps
    if warmup_steps > last_step:
        named = f"train.schedule_args.warmup_steps={warmup_steps}"
        yield f"{named} is more than the {last_step} steps of the training: {UNREACHED}"
    if config.warmup_epochs > config.epochs and not warmup_steps:
        yield f"train.warmup_epochs={config.warmup_epochs:g} is more than train.epochs={config.epochs}: {UNREACHED}"


def _rate_warnings(config: TrainConfig, peak_rate: float) -> Iterator[str]:
    if config.optimizer == "adamw" and peak_rate > HIGH_FOR_ADAMW:
        yield (
            f"the learning rate rises to {peak_rate:g}, which is high for adamw: set train.learning_rate, such as to "
            f"0.001 (now {config.learning_rate:g}, for a global batch of {config.base_batch_size})"
        )


def _unused_settings(config: TrainConfig) -> Iterator[str]:
    for name, value in config.changed_settings().items():
        choice, needed = config.declared(name)["used_with"] or ("", "")
        if choice and getattr(config, choice) != needed:
            needs = f"{config.public_name(choice)}={needed}, not {getattr(config, choice)}"
            yield f"{config.public_name(name)}={value} has no effect: it is for {needs}"
    if "rand_augment_magnitude" in config.augment and not config.augmentation.rand_augment:
        yield "train.augment.rand_augment_magnitude has no effect without rand_augment"


def entry_warnings(config: TrainConfig) -> Iterator[str]:
    """Name the settings that have no effect beside an entry, if there is one."""
    if config.entry:
        yield from _unread(
            config, lambda name: config.declared(name)["entry"] != "used", "the entry reads KUBETRAIN_CONFIG"
        )


def own_data_warnings(config: TrainConfig) -> Iterator[str]:
    """Name the settings of images that have no effect on a task of your own, if it is one."""
    if is_import_path(config.model):
        yield from _unread(config, ImageSettings.names().__contains__, "the task's data reads the setting")


def _unread(config: TrainConfig, is_unread: Callable[[str], bool], unless: str) -> Iterator[str]:
    changed = config.changed_settings().items()
    if given := [f"{config.public_name(name)}={value}" for name, value in changed if is_unread(name)]:
        yield f"{', '.join(given)}: without effect, unless {unless}"
