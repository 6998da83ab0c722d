"""The settings of what a training reads: its task, its data and how images are changed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kubetrain_trainer.settings.augmentation import RECIPES, Recipe
from kubetrain_trainer.settings.base import Settings, setting
from kubetrain_trainer.settings.synthetic_data import SyntheticData


@dataclass(frozen=True)
class TaskSettings(Settings):
    model: str = setting(
        "digits_cnn",
        "digits_cnn, torchvision:NAME, keras:NAME, or package.module:function that builds your own Task",
        name="model.name",
        in_form=True,
    )
    entry: dict[str, Any] = setting(
        {},
        "script or command of your own that runs instead of the trainer's loop: script with args, or command; "
        "evaluation, with the same keys, evaluates the model",
        entry="used",
        in_form=True,
    )
    requirements: str = setting(
        "",
        "requirements.txt of an entry: pip installs what the image lacks of it, once beside the outputs of the runs",
        entry="used",
    )
    code: str = setting(
        "", "archive of your own code that the pods fetch, by its digest", entry="used", is_internal=True
    )
    model_args: dict[str, Any] = setting(
        {}, "extra keyword arguments for the model, or options of your own task", entry="used", name="model.args"
    )


@dataclass(frozen=True)
class DataSettings(Settings):
    data: str = setting(
        "image_folder",
        "image_folder: <split>/<class>/<image>; tar_shards: <split>/*.tar in the WebDataset convention, as "
        "`kubetrain pack` writes them; synthetic: generated images, to try things out",
        choices=("image_folder", "tar_shards", "synthetic"),
        entry="used",
        name="data.format",
        in_form=True,
    )
    data_access: str = setting(
        "volume",
        "where training pods read the dataset; cache: tar shards that `kubetrain pack` wrote stay in S3, and each pod "
        "fetches those that it needs next",
        choices=("volume", "cache"),
        name="data.delivery",
    )
    cache_gb: float = setting(
        100.0,
        "space of each pod for shards, in gigabytes. Samples are shuffled among the shards that fit into a quarter of "
        "it",
        above=0,
        used_with=("data_access", "cache"),
        name="data.cache_gb",
    )
    image_size: int = setting(
        0, "image size in pixels; 0: the model's default (digits_cnn 8, others 224)", minimum=0, name="data.image_size"
    )
    synthetic: dict[str, Any] = setting(
        {},
        'options of the generated images that differ from their defaults, such as {"classes": 100}',
        used_with=("data", "synthetic"),
        name="data.synthetic",
    )
    validation_split: str = setting(
        "val", "folder of the dataset used to choose the best checkpoint", name="data.validation_split"
    )
    test_split: str = setting(
        "test", "folder of the dataset used to evaluate the finished model", name="data.test_split"
    )

    @cached_property
    def synthetic_data(self) -> SyntheticData:
        """The options of the generated images, with their defaults."""
        return SyntheticData.from_dict(self.synthetic)

    @property
    def uses_cache(self) -> bool:
        """Return True if pods fetch the dataset's shards from S3 themselves."""
        return self.data_access == "cache"

    @property
    def cache_bytes(self) -> int:
        return int(self.cache_gb * 1e9)


@dataclass(frozen=True)
class ImageSettings(Settings):
    evaluation_crop: float = setting(
        1.0,
        "part of the shorter side that validation, evaluation and predictions see, at the center: 0.875 is usual if "
        "the training crops at random",
        above=0,
        maximum=1,
        entry="refused",
    )
    skip_damaged: int = setting(
        0,
        "number of damaged training images that each process of a built-in model may leave out: each is named, and the "
        "next one takes its place",
        minimum=0,
        is_changeable=True,
        entry="refused",
    )
    recipe: str = setting(
        "none",
        "how the training images of built-in models are changed at random; standard: crop_area 0.25 and flip 0.5; "
        "strong: besides, rand_augment 2, erase 0.25, mixup 0.2 and cutmix 1. Each image depends only on seed, epoch "
        "and index",
        choices=tuple(RECIPES),
        entry="refused",
        in_form=True,
    )
    augment: dict[str, Any] = setting(
        {}, 'parts of the recipe to change, such as {"flip": 0, "mixup": 0.2}', entry="refused"
    )

    @cached_property
    def augmentation(self) -> Recipe:
        """The recipe, with the parts of it that are set."""
        return Recipe.from_dict({**RECIPES[self.recipe].changed_settings(), **self.augment})
