"""The names of the settings of a run, GROUP.NAME, in five groups: the one way in which users set anything."""

from dataclasses import Field, dataclass, fields
from difflib import get_close_matches
from typing import Any

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.run.run_settings import RunSettings
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.augmentation import Recipe
from kubetrain_trainer.settings.base import Settings, default_of
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.optimizer_args import OPTIMIZERS
from kubetrain_trainer.settings.schedule_args import SCHEDULES
from kubetrain_trainer.settings.synthetic_data import SyntheticData

GROUPS = {
    "data": "the dataset: where it is, and how it is read",
    "model": "the model: what is trained, where it is published, and what it must reach",
    "pods": "the pods that train: how many, with what, and where they run",
    "storage": "the PVCs, and how pods get the dataset",
    "train": "the training",
}
KINDS: tuple[type[Settings], ...] = (RunSettings, TrainConfig, Placement, Storage)
"""The classes that declare the settings."""
ALSO_CALLED = {
    "lr": "train.learning_rate",
    "bs": "train.batch_size",
    "image": "pods.image",
    "nproc_per_node": "pods.processes",
    "nnodes": "pods.workers",
    "replicas": "pods.workers",
}
"""Words of other tools that no spelling leads to."""
NEAR = 0.7
"""How alike two names are, of 1, for one to be a misspelling of the other."""


@dataclass(frozen=True)
class RunSetting:
    kind: type[Settings]
    field: "Field[Any]"

    @property
    def name(self) -> str:
        return self.kind.public_name(self.field.name)

    @property
    def group(self) -> str:
        return self.name.partition(".")[0]

    @property
    def key(self) -> str:
        """The name within the group."""
        return self.name.partition(".")[2]

    @property
    def form_field(self) -> str:
        """The name of the field in the form of Kubeflow Pipelines."""
        return self.name.replace(".", "_")

    @property
    def default(self) -> Any:
        return default_of(self.field)

    @property
    def meaning(self) -> str:
        """The meaning with the choices, and the facts of the declaration that say when the setting applies."""
        declared = self.field.metadata
        only = {"pytorch": "PyTorch: "}.get(declared["only"], "")
        other, value = declared["used_with"] or ("", "")
        used_with = f"{self.kind.public_name(other)}={value}: " if other else ""
        choices = [choice for choice in declared["choices"] if choice]
        return f"{only}{used_with}{declared['meaning']}" + (f" ({', '.join(choices)})" if choices else "")

    @property
    def sentence(self) -> str:
        """The meaning as a sentence of its own."""
        return f"{self.meaning[0].upper()}{self.meaning[1:]}."

    @property
    def is_on_cluster(self) -> bool:
        """Return True if only a run on a cluster uses it."""
        of_pods = self.kind in (Placement, Storage) and self.name != "pods.max_restarts"
        return of_pods or self.field.metadata["only"] == "cluster"


SETTINGS = {setting.name: setting for kind in KINDS for field in fields(kind) if (setting := RunSetting(kind, field))}
OPTIONS: dict[str, dict[str, type[Settings]]] = {
    "data.synthetic": {"": SyntheticData},
    "train.augment": {"": Recipe},
    "train.optimizer_args": {f"train.optimizer={name}": kind for name, kind in OPTIMIZERS.items()},
    "train.schedule_args": {f"train.schedule={name}": kind for name, kind in SCHEDULES.items()},
}
"""What the settings that are objects hold, by the choice that it depends on."""
FORM_FIELDS = {setting.form_field: setting for setting in SETTINGS.values() if setting.field.metadata["in_form"]}


def find_setting(name: str) -> RunSetting:
    """
    Raises:
        InvalidSetting: if no setting has this name, with one that is near, if any.
    """
    if found := SETTINGS.get(name):
        return found
    raise InvalidSetting(f"there is no setting '{name}': {suggestion(name)}")


def suggestion(name: str) -> str:
    """Return what may be meant by a name that no setting has."""
    if name in FORM_FIELDS:
        return f"write {FORM_FIELDS[name].name}, as outside of forms"
    if (whole := ".".join(name.split(".")[:2])) in SETTINGS:
        return f"{whole} is one, and `kubetrain settings {whole}` explains its parts"
    group, _, key = name.rpartition(".")
    likely = [setting for setting in SETTINGS.values() if group not in GROUPS or setting.group == group]
    near = get_close_matches(key, [setting.key for setting in likely], n=1, cutoff=NEAR)
    found = [setting.name for setting in SETTINGS.values() if setting.key == key]
    found += [setting.name for setting in likely if setting.key in near]
    if meant := ALSO_CALLED.get(key) or next(iter(found), ""):
        return f"did you mean '{meant}'?"
    if group in GROUPS:
        return f"`kubetrain settings {group}` lists those of this group"
    return f"write GROUP.NAME; the groups are {', '.join(GROUPS)}"
