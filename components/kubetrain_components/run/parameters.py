"""The validated parameters of a run."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.placement import Placement, processes_in_pod
from kubetrain_components.object_store.claim_uri import SCHEME, ClaimFolder
from kubetrain_components.object_store.open_store import check_sources, check_uri, check_writable, is_inside
from kubetrain_components.object_store.sources import SEVERAL
from kubetrain_components.run.gate import Gate, parse_gate
from kubetrain_components.run.run_settings import RunSettings, check_growth
from kubetrain_trainer.data import image_folder, tar_shards
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.config_checks import check_framework
from kubetrain_trainer.settings.model_names import check_model, is_own_code

LAYOUTS = {"image_folder": image_folder.LAYOUT, "tar_shards": tar_shards.LAYOUT}
RUN_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"


@dataclass(frozen=True, kw_only=True)
class RunParameters(RunSettings):
    """
    Raises:
        InvalidSetting: for the first parameter that cannot be used, with the remedy.
    """

    pipeline: str = ""
    run_id: str = ""
    """Empty if it is not known yet."""
    components_image: str = ""
    framework: str = ""
    """Empty if the run only syncs the dataset."""
    train_config: TrainConfig = TrainConfig()
    placement: Placement = Placement()
    storage: Storage = Storage()

    def __post_init__(self) -> None:
        super().__post_init__()
        if folder := self.data_in_place:
            self._check_in_place(folder)
        elif self.dataset_uri:
            check_sources("data.uri", self.dataset_uri)
        elif not self.train_config.entry:
            raise InvalidSetting(
                "data.uri is empty, but only a script of your own, train.entry, can bring its own data: write "
                "s3://BUCKET/PREFIX"
            )
        if self.framework:
            self._check_training()
        if self.run_id:
            check_run_id("the run ID", self.run_id)

    def _check_training(self) -> None:
        package_of(self.framework)
        if not self.train_config.entry:
            check_model(self.framework, self.train_config.model)
            check_framework(self.framework, self.train_config)
        check_growth(self.workers, self.min_workers, self.max_workers)
        _ = self.parsed_gate
        if not self.train_config.publishes and (self.gate or self.skip_unchanged):
            raise InvalidSetting("model.gate and train.skip_unchanged need a model: leave them or train.publishes out")
        _ = self.processes_in_pod
        Placement.some_of(self.evaluation_placement)
        check_writable("model.uri", self.model_uri)
        if self.storage.output:
            check_writable("storage.output", self.storage.output)
            if self.train_config.weights_uri:
                raise InvalidSetting("storage.output: weights of model.start are brought to a PVC: leave either out")
            if self.launcher == Launcher.RAY:
                raise InvalidSetting("storage.output: pods.launcher=ray saves to a PVC: leave either out")
        if uri := self.train_config.weights_uri:
            check_uri("model.start", uri)
        if self.skip_unchanged and not self.dataset_uri:
            raise InvalidSetting("train.skip_unchanged compares datasets, but data.uri is empty: leave one of them out")
        if self.train_config.uses_cache and (
            self.dataset_include or self.dataset_exclude or self.dataset_uri.startswith(SEVERAL)
        ):
            raise InvalidSetting(
                "data.delivery=cache reads all shards of one source: leave it out, or several sources and patterns"
            )
        if self.dataset_uri and is_inside(self.model_uri, self.dataset_uri):
            raise InvalidSetting(
                f"model.uri '{self.model_uri}' is inside data.uri '{self.dataset_uri}', so models would become part of "
                "the next dataset: choose a model.uri (or a workspace) outside"
            )

    def _check_in_place(self, folder: ClaimFolder) -> None:
        if self.dataset_include or self.dataset_exclude or self.train_config.uses_cache:
            raise InvalidSetting("a PVC is read as it is: leave out data.include, data.exclude and data.delivery")
        if folder == ClaimFolder(self.storage.output_claim):
            raise InvalidSetting(f"data.uri '{self.dataset_uri}' is all of the output PVC: name a folder of it")

    @property
    def data_in_place(self) -> ClaimFolder | None:
        """The folder of a PVC that pods read; None if the dataset is synced, or there is none."""
        return ClaimFolder.of(self.dataset_uri) if self.dataset_uri.startswith(SCHEME) else None

    @property
    def syncs(self) -> bool:
        """True if a dataset is copied to the staging PVC."""
        return bool(self.dataset_uri) and not self.data_in_place

    @property
    def processes_in_pod(self) -> int:
        return processes_in_pod(self.framework, self.processes_per_worker, self.placement, self.train_config.entry)

    @property
    def parsed_gate(self) -> Gate:
        return parse_gate(self.gate, self.train_config)

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
            ("data.validation_split", config.validation_split),
            ("data.test_split", config.test_split),
        ):
            if split not in folders:
                found = ", ".join(folders) or "none"
                raise KubetrainError(
                    f"{self.dataset_uri} has no folder '{split}' for {setting} (it has: {found}): "
                    f"{LAYOUTS[config.data]}, and data.validation_split and data.test_split name the folders to use"
                )


def check_run_id(name: str, run_id: str) -> None:
    """Check that the ID of a run can name a folder."""
    if not re.fullmatch(RUN_ID, run_id):
        raise InvalidSetting(
            f"{name} '{run_id}' cannot name a folder: use up to 100 letters, digits, '.', '_' and '-', "
            "starting with a letter or digit"
        )


def check_on_one_machine(config: TrainConfig, data_uri: str = "") -> None:
    """
    Raises:
        InvalidSetting: if only a cluster can do what a setting says.
    """
    if data_uri.startswith(SCHEME):
        raise InvalidSetting(f"data.uri '{data_uri}' names a PVC of a cluster: use a folder here")
    if config.preflight == "avoid":
        raise InvalidSetting(
            "train.preflight=avoid is for a cluster, which has other nodes: leave it out on one machine"
        )
