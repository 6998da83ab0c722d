"""The validated parameters of a run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.names import check_object_name
from kubetrain_components.jobs.placement import Placement, processes_in_pod
from kubetrain_components.object_store.credentials import DEFAULT_SECRET
from kubetrain_components.object_store.open_store import check_endpoint, check_uri, is_inside
from kubetrain_components.object_store.store import Access
from kubetrain_components.run.gate import Gate, parse_gate
from kubetrain_trainer.data import image_folder, tar_shards
from kubetrain_trainer.errors import InvalidSetting, KubetrainError, check_one_of
from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.config_checks import check_framework
from kubetrain_trainer.settings.model_names import check_model, is_own_code

LAYOUTS = {"image_folder": image_folder.LAYOUT, "tar_shards": tar_shards.LAYOUT}
MAX_WORKERS = 10_000
RUN_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"


@dataclass(frozen=True, kw_only=True)
class RunParameters:
    """
    Raises:
        InvalidSetting: for the first parameter that cannot be used, with the remedy.
    """

    dataset_uri: str
    dataset_access: str = "credentials"
    s3_endpoint: str = ""
    s3_secret: str = DEFAULT_SECRET
    pipeline: str = ""
    run_id: str = ""
    """Empty if it is not known yet."""
    components_image: str = ""
    framework: str = ""
    """Empty if the run only syncs the dataset."""
    train_config: TrainConfig = TrainConfig()
    workers: int = 1
    processes_per_worker: int = 0
    """0: one for each GPU of a pod."""
    min_workers: int = 0
    max_workers: int = 0
    launcher: str = Launcher.AUTO
    min_accuracy: float = 0.0
    gate: str = ""
    model_uri: str = ""
    skip_unchanged: bool = False
    placement: Placement = Placement()
    storage: Storage = Storage()
    evaluation_placement: Mapping[str, Any] = field(default_factory=dict)
    """Settings in which the evaluation's pod differs from those of the training."""

    def __post_init__(self) -> None:
        check_uri("dataset_uri", self.dataset_uri)
        check_endpoint("s3_endpoint", self.s3_endpoint)
        check_one_of(Access, "dataset_access", self.dataset_access)
        if not self.s3_secret:
            raise InvalidSetting(
                f"s3_secret is empty: leave it at {DEFAULT_SECRET}, which may be missing, if the pods need no secret"
            )
        check_object_name("s3_secret", self.s3_secret)
        if self.framework:
            self._check_training()
        if self.run_id:
            check_run_id("run_id", self.run_id)

    def _check_training(self) -> None:
        package_of(self.framework)
        if not self.train_config.entry:
            check_model(self.framework, self.train_config.model)
            check_framework(self.framework, self.train_config)
        _check_range("workers", self.workers, 1, MAX_WORKERS)
        _check_range("processes_per_worker", self.processes_per_worker, 0, 64)
        _check_range("min_workers", self.min_workers, 0, self.workers)
        _check_range("max_workers", self.max_workers, 0, MAX_WORKERS)
        check_growth(self.workers, self.min_workers, self.max_workers)
        check_one_of(Launcher, "launcher", self.launcher)
        _check_range("min_accuracy", self.min_accuracy, 0, 1)
        _ = self.parsed_gate
        _ = self.processes_in_pod
        Placement.some_of(self.evaluation_placement)
        check_uri("model_uri", self.model_uri)
        if uri := self.train_config.weights_uri:
            check_uri("initial_weights", uri)
        if is_inside(self.model_uri, self.dataset_uri):
            raise InvalidSetting(
                f"model_uri '{self.model_uri}' is inside dataset_uri '{self.dataset_uri}', so models would become "
                "part of the next dataset: choose a model_uri (or a workspace) outside"
            )

    @property
    def processes_in_pod(self) -> int:
        return processes_in_pod(self.framework, self.processes_per_worker, self.placement, self.train_config.entry)

    @property
    def parsed_gate(self) -> Gate:
        return parse_gate(self.gate, self.min_accuracy, self.train_config)

    def check_folders(self, folders: Sequence[str]) -> None:
        """Check that a dataset of these folders has the splits that the run uses.

        Raises:
            KubetrainError: for a split that is missing.
        """
        config = self.train_config
        if not self.framework or config.data not in LAYOUTS or is_own_code(config):
            return
        for setting, split in (
            ("the training", "train"),
            ("validation_split", config.validation_split),
            ("test_split", config.test_split),
        ):
            if split not in folders:
                found = ", ".join(folders) or "none"
                raise KubetrainError(
                    f"{self.dataset_uri} has no folder '{split}' for {setting} (it has: {found}): "
                    f"{LAYOUTS[config.data]}, and validation_split and test_split name the folders to use"
                )


def check_run_id(name: str, run_id: str) -> None:
    """Check that the ID of a run can name a folder."""
    if not re.fullmatch(RUN_ID, run_id):
        raise InvalidSetting(
            f"{name} '{run_id}' cannot name a folder: use up to 100 letters, digits, '.', '_' and '-', "
            "starting with a letter or digit"
        )


def check_on_one_machine(config: TrainConfig) -> None:
    """
    Raises:
        InvalidSetting: if only a cluster can do what a setting says.
    """
    if config.preflight == "avoid":
        raise InvalidSetting("preflight=avoid is for a cluster, which has other nodes: leave it out on one machine")


def check_growth(workers: int, min_workers: int, max_workers: int) -> None:
    """
    Raises:
        InvalidSetting: if a job of these numbers of pods cannot grow to max_workers.
    """
    if max_workers and not min_workers:
        raise InvalidSetting(
            f"max_workers is {max_workers}, but only an elastic job grows: set min_workers as well, or leave it out"
        )
    if max_workers and max_workers < workers:
        raise InvalidSetting(f"max_workers is {max_workers}, less than workers, {workers}: raise it, or lower workers")


def _check_range(name: str, value: float, minimum: float, maximum: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise InvalidSetting(f"{name} must be a number from {minimum:g} to {maximum:g}, not {value!r}")
