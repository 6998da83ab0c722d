"""The parameters of a whole run, checked by its first step before anything is made."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.object_store.open_store import check_access, check_uri
from kubetrain_components.run.combined_settings import combined
from kubetrain_trainer import image_folder, tar_shards
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.model_names import check_model, is_import_path

LAYOUTS = {"image_folder": image_folder.LAYOUT, "tar_shards": tar_shards.LAYOUT}
RUN_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"


@dataclass(frozen=True, kw_only=True)
class RunParameters:
    dataset_uri: str
    dataset_access: str = "credentials"
    framework: str = ""
    """Empty: the run trains nothing."""
    train_config: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 1
    processes_per_worker: int = 1
    min_workers: int = 0
    min_accuracy: float = 0.0
    model_uri: str = ""
    run_id: str = ""
    """Empty: one will be made."""
    placement: Placement = Placement()
    storage: Storage = Storage()

    @classmethod
    def of_pipeline(
        cls,
        *,
        image: str,
        pods: Mapping[str, Any],
        placement: Mapping[str, Any],
        claims: Mapping[str, Any],
        storage: Mapping[str, Any],
        **others: Any,
    ) -> Self:
        """As a pipeline's parameters say it, of which some are the most wanted settings of placement and storage.

        Args:
            image: What trains, unless the placement names another.
        """
        placed = combined(Placement, {"its parameter": pods, "placement": placement})
        return cls(
            placement=placed.with_default_image(image),
            storage=combined(Storage, {"its parameter": claims, "storage": storage}),
            **others,
        )

    def check(self) -> None:
        """See that every parameter can be used.

        Raises:
            InvalidSetting: naming the first that cannot, and the remedy.
        """
        check_uri("dataset_uri", self.dataset_uri)
        check_access("dataset_access", self.dataset_access)
        if not self.framework:
            return
        package_of(self.framework)
        check_model(self.framework, TrainConfig.from_dict(self.train_config).model)
        _check_range("workers", self.workers, 1, 10_000)
        _check_range("processes_per_worker", self.processes_per_worker, 1, 64)
        _check_range("min_workers", self.min_workers, 0, self.workers)
        _check_range("min_accuracy", self.min_accuracy, 0, 1)
        if self.framework == "tensorflow" and self.processes_per_worker > 1:
            raise InvalidSetting(
                f"processes_per_worker is {self.processes_per_worker}, but a TensorFlow process uses every GPU of its "
                "pod: leave it at 1 and raise workers"
            )
        check_uri("model_uri", self.model_uri)
        if self.run_id:
            check_run_id("run_id", self.run_id)

    def check_folders(self, folders: Sequence[str]) -> None:
        """Whether a dataset of these folders has the splits of the run: better said before the training than after.

        Raises:
            KubetrainError: naming the split that is missing.
        """
        config = TrainConfig.from_dict(self.train_config)
        if not self.framework or config.data not in LAYOUTS or is_import_path(config.model):
            return
        for setting, split in (
            ("the training", "train"),
            ("validation_split", config.validation_split),
            ("test_split", config.test_split),
        ):
            if split not in folders:
                there = ", ".join(folders) or "none"
                raise KubetrainError(
                    f"{self.dataset_uri} has no folder '{split}' for {setting} (it has: {there}): "
                    f"{LAYOUTS[config.data]}, and validation_split and test_split name the folders to use"
                )


def check_run_id(name: str, run_id: str) -> None:
    """It becomes a folder's name."""
    if not re.fullmatch(RUN_ID, run_id):
        raise InvalidSetting(
            f"{name} '{run_id}' cannot name a folder: use up to 100 letters, digits, '.', '_' and '-', "
            "a letter or digit first"
        )


def _check_range(name: str, value: float, least: float, most: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidSetting(f"{name} must be a number from {least:g} to {most:g}, not {value!r}")
