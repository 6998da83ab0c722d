"""Checks of settings that contradict each other, or that no limit of a single one covers."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.augmentation import PARTS
from kubetrain_trainer.settings.layers import patterns_in

OF_PYTORCH = (
    "sharding",
    "tensor_parallel",
    "activation_checkpointing",
    "compile_mode",
    "weights_format",
    "preflight",
    "avoid_bad_nodes",
)
OF_IMAGES = ("recipe", *PARTS, "evaluation_crop", "skip_damaged")
"""Settings of the images that models by name train on."""
OF_THE_LOOP = ("initial_weights", "freeze", "layer_rate", "profile_steps", *OF_IMAGES, *OF_PYTORCH)
"""Settings of the trainer's loop and its images, of which your own script knows nothing."""
SMALLEST_CROP = 0.01
Config = Any
"""A TrainConfig, which checks itself here."""


def check_together(config: Config) -> None:
    """
    Raises:
        InvalidSetting: for the first contradiction.
    """
    for problem in (
        *_of_code(config),
        *_of_data(config),
        *_of_images(config),
        *_of_steps(config),
        *_of_the_start(config),
        *_of_mlflow(config),
    ):
        raise InvalidSetting(problem)


def check_framework(framework: str, config: Config) -> None:
    """
    Raises:
        InvalidSetting: if the framework cannot do what a setting says.
    """
    if framework == "tensorflow":
        if config.exchange_precision != "fp32":
            raise InvalidSetting("exchange_precision must be fp32: TensorFlow exchanges gradients as they are computed")
        changed = config.changed_settings()
        for name in (each for each in OF_PYTORCH if each in changed):
            raise InvalidSetting(f"{name} is for PyTorch: this training uses TensorFlow")


def _of_code(config: Config) -> Iterator[str]:
    if config.code and not re.fullmatch("[0-9a-f]{32}", config.code):
        yield f"code must be the digest of an archive, not '{config.code}': bring a folder with --code"
    changed = config.changed_settings() if config.entry else {}
    for name in (each for each in OF_THE_LOOP if each in changed):
        yield f"{name} is for the trainer's loop: your script may do the same"


def _of_data(config: Config) -> Iterator[str]:
    if config.uses_cache and config.entry:
        yield "data_access must be volume: only the trainer's loop reads shards from a cache"
    if config.uses_cache and config.data != "tar_shards":
        yield f"data_access=cache needs data=tar_shards, not {config.data}: pack the dataset with `kubetrain pack`"


def _of_images(config: Config) -> Iterator[str]:
    for name in ("validation_split", "test_split"):
        if not getattr(config, name):
            yield f"{name} is empty: name a folder of the dataset"
    if config.augmentation.is_used and config.data == "synthetic":
        yield "recipe and its parts are for images from files, but data is synthetic"
    if 0 <= config.crop_area < SMALLEST_CROP:
        yield f"crop_area must be at least {SMALLEST_CROP}, or -1, not {config.crop_area}"
    for name in PARTS:
        if -1 < (value := getattr(config, name)) < 0:
            yield f"{name} must be at least 0, or -1, not {value:g}"
    for name in ("batch_size", "global_batch_size"):
        if config.augmentation.mixes and getattr(config, name) % 2:
            yield f"{name} must be even, not {getattr(config, name)}, because mixup and cutmix mix two images each"


def _of_steps(config: Config) -> Iterator[str]:
    if 0 < config.max_steps <= config.warmup_steps:
        yield (
            f"warmup_steps must be less than max_steps ({config.max_steps}), not {config.warmup_steps}: the learning "
            "rate would never reach its peak"
        )
    if config.profile_steps and not config.steps_to_profile:
        yield f"profile_steps must be the first and the last step, such as 100:110, not '{config.profile_steps}'"
    if config.exchange_mb and config.sharding != "none":
        yield "exchange_mb is for sharding=none: with sharding, the gradients of each layer are exchanged at once"
    if config.tensor_parallel > 1 and config.sharding == "none":
        yield "tensor_parallel is for PyTorch and needs sharding: set sharding to full or hybrid"
    if config.compile_mode != "default" and not config.compile:
        yield f"compile_mode={config.compile_mode} needs compile=true"
    if config.compile_mode != "default" and config.sharding != "none":
        yield f"compile_mode={config.compile_mode} needs sharding=none, under which weights keep their place in memory"
    if config.avoid_bad_nodes and config.preflight == "false":
        yield "avoid_bad_nodes needs the preflight, which finds bad nodes: leave out preflight=false"
    if config.nesterov and not config.momentum:
        yield "nesterov needs a momentum above 0"
    if config.select_checkpoint == "best" and config.best_is == "unknown":
        yield (
            f"metric_mode=auto cannot know whether a high or a low '{config.metric}' is better: set metric_mode to max "
            "or min"
        )


def _of_the_start(config: Config) -> Iterator[str]:
    if config.initial_weights and config.resume_from:
        yield "resume_from starts with the other run's weights: leave out initial_weights"
    if config.freeze and not patterns_in(config.freeze):
        yield f"freeze is '{config.freeze}', which names nothing: give names of layers, or leave it out"
    place = PurePosixPath(config.initial_weights)
    if place.is_absolute() or ".." in place.parts:
        yield (
            "initial_weights must be a path under the output root, such as the id of a run, not "
            f"'{config.initial_weights}'"
        )
    if "/" in config.resume_from or config.resume_from in (".", ".."):
        yield f"resume_from must be the id of another run, not the path '{config.resume_from}'"


def _of_mlflow(config: Config) -> Iterator[str]:
    if config.mlflow_uri and (problem := address_problem(config.mlflow_uri)):
        yield f"mlflow_uri {problem}"
    if not config.mlflow_experiment:
        yield "mlflow_experiment is empty: name an experiment"


def address_problem(address: str) -> str:
    """Return what is wrong with the address, without repeating what may be a password; empty if nothing is."""
    if any(character in address for character in "@?#"):
        return (
            "must not contain credentials, a query or the # of a page: name the server alone, and pass credentials in "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        )
    if any(character.isspace() for character in address):
        return "must not contain spaces"
    try:
        parts = urlsplit(address)
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_server = False
    return "" if is_server else f"must be the address of a server, such as https://mlflow.example.com, not '{address}'"
