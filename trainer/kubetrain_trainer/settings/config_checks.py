"""Checks of settings that contradict each other, or that no limit of a single one covers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.layers import patterns_in

Config = Any
"""A TrainConfig, which checks itself here."""


def check_together(config: Config) -> None:
    """
    Raises:
        InvalidSetting: for the first contradiction.
    """
    for problem in (
        *_code_problems(config),
        *_data_problems(config),
        *_image_problems(config),
        *_step_problems(config),
        *_speed_problems(config),
        *_start_problems(config),
    ):
        raise InvalidSetting(problem)


def check_framework(framework: str, config: Config) -> None:
    """
    Raises:
        InvalidSetting: if the framework cannot do what a setting says.
    """
    for name, value in config.changed_settings().items():
        declared = config.declared(name)
        if framework == "tensorflow" and (declared["only"] == "pytorch" or value in declared["pytorch_choices"]):
            setting = config.public_name(name) + ("" if declared["only"] else f"={value}")
            raise InvalidSetting(f"{setting} is for PyTorch: this training uses TensorFlow")


def _code_problems(config: Config) -> Iterator[str]:
    if config.code and not re.fullmatch("[0-9a-f]{32}", config.code):
        yield f"train.code must be the digest of an archive, not '{config.code}': bring a folder with --code"
    if config.requirements and not config.entry:
        yield "train.requirements is for a train.entry: a task needs an image that has its packages"
    changed = config.changed_settings() if config.entry else {}
    for name in (name for name in config.names_with("entry", "refused") if name in changed):
        yield f"{config.public_name(name)} is for the trainer's loop: your script may do the same"
    yield from _model_problems(config)


def _model_problems(config: Config) -> Iterator[str]:
    if not config.entry and (config.outputs or not config.publishes):
        yield "train.outputs and train.publishes are for a script of your own, train.entry: leave them out"
    if not config.publishes and (config.outputs or "evaluation" in config.entry):
        yield "train.publishes=false leaves no model for train.outputs, or for the evaluation of train.entry"
    for pattern in config.outputs:
        path = PurePosixPath(pattern if isinstance(pattern, str) else "")
        if not path.parts or path.is_absolute() or ".." in path.parts:
            example = '["model.pt", "outputs/"]'
            yield f"train.outputs must name files in the script's working directory, as {example}, not {pattern!r}"


def _data_problems(config: Config) -> Iterator[str]:
    if config.uses_cache and config.entry:
        yield "data.delivery must be volume: only the trainer's loop reads shards from a cache"
    if config.uses_cache and config.data != "tar_shards":
        yield (
            f"data.delivery=cache needs data.format=tar_shards, not {config.data}: pack the dataset with "
            "`kubetrain pack`"
        )


def _image_problems(config: Config) -> Iterator[str]:
    for name in ("validation_split", "test_split"):
        if not getattr(config, name):
            yield f"{config.public_name(name)} is empty: name a folder of the dataset"
    if config.augmentation.is_used and config.data == "synthetic":
        yield "train.recipe and train.augment are for images from files, but data.format is synthetic"
    for name in ("batch_size", "global_batch_size"):
        if config.augmentation.mixes and getattr(config, name) % 2:
            named = f"train.{name} must be even, not {getattr(config, name)}"
            yield f"{named}, because mixup and cutmix mix two images each"


def _step_problems(config: Config) -> Iterator[str]:
    if 0 < config.max_steps <= (warmup := config.scheduling.warmup_steps):
        yield (
            f"train.schedule_args.warmup_steps must be less than train.max_steps ({config.max_steps}), not {warmup}: "
            "the learning rate would never reach its peak"
        )
    if config.profile_steps and not config.steps_to_profile:
        yield f"train.profile_steps must be the first and the last step, such as 100:110, not '{config.profile_steps}'"
    if config.optimizer == "sgd" and config.optimizing.nesterov and not config.optimizing.momentum:
        yield "train.optimizer_args.nesterov needs a momentum above 0"
    if config.select_checkpoint == "best" and not config.best_by.direction:
        yield (
            f"train.metric does not say whether a high or a low '{config.metric}' is better: set it to "
            f"max:{config.metric} or min:{config.metric}"
        )


def _speed_problems(config: Config) -> Iterator[str]:
    if config.allreduce_bucket_mb and config.sharding != "none":
        yield "train.allreduce_bucket_mb is for train.sharding=none: with sharding, each layer is a bucket"
    if config.tensor_parallel > 1 and config.sharding == "none":
        yield "train.tensor_parallel is for PyTorch and needs sharding: set train.sharding to full or hybrid"
    if config.uses_cuda_graphs and config.sharding != "none":
        yield (
            f"train.compile={config.compile} needs train.sharding=none, under which weights keep their place in memory"
        )


def _start_problems(config: Config) -> Iterator[str]:
    if config.initial_weights and config.resume_from:
        yield "train.resume_from starts with the other run's weights: leave out model.start"
    if config.freeze and not patterns_in(config.freeze):
        yield f"train.freeze is '{config.freeze}', which names nothing: give names of layers, or leave it out"
    place = PurePosixPath(config.initial_weights)
    if place.is_absolute() or ".." in place.parts:
        yield (
            f"model.start must be a path under the output root, such as the id of a run, not '{config.initial_weights}'"
        )
    if "/" in config.resume_from or config.resume_from in (".", ".."):
        yield f"train.resume_from must be the id of another run, not the path '{config.resume_from}'"
