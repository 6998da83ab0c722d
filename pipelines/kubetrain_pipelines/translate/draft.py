"""The draft of a translation: settings, fields without a counterpart, and notes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kubetrain_components.jobs.job_kinds import MPI
from kubetrain_components.jobs.pod_patch import merge, pod_patch
from kubetrain_components.run.names import SETTINGS
from kubetrain_components.run.request import Request, merged
from kubetrain_pipelines.translate.fields import Fields, shown
from kubetrain_pipelines.translate.reasons import reason_for
from kubetrain_trainer.settings.config import TrainConfig


@dataclass(frozen=True)
class Unmapped:
    """A field that has no counterpart."""

    path: str
    value: str
    instead: str
    """A sentence on what kubetrain does instead, or what the user can do."""

    @classmethod
    def of(cls, path: str, value: Any, instead: str = "") -> "Unmapped":
        return cls(path, shown(path, value), instead or reason_for(path))


@dataclass
class Draft:
    job: str = ""
    """The name of the job, which its operator also writes into labels of the pods."""
    framework: str = ""
    """The framework of a job that `kubetrain train` runs; empty: a pipeline of PyTorch or TensorFlow does."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings by the fields of their classes; those of the training are in train_config."""
    command: list[str] = field(default_factory=list)
    """The command of a job that `kubetrain train` runs."""
    unmapped: list[Unmapped] = field(default_factory=list)
    has_one_program: bool = True
    """False if the pods of some roles run another program than the others."""
    notes: list[str] = field(default_factory=list)
    """Sentences on settings that differ from their fields, and on what to check."""

    @property
    def request(self) -> Request:
        """The settings by group and name, in the order of the groups."""
        config = self.settings.get("train_config", {})
        request: Request = {}
        for setting in SETTINGS.values():
            values = config if setting.kind is TrainConfig else self.settings
            if (name := setting.field.name) in values:
                request.setdefault(setting.group, {})[setting.key] = values[name]
        return merged(request)

    @property
    def pods(self) -> int:
        return int(self.settings["workers"]) + (self.framework == MPI)  # the Launcher

    def set(self, name: str, value: Any) -> None:
        """Set a value, add to a list, or add entries to an object."""
        if value in (None, "", [], {}):
            return
        old = self.settings.get(name)
        if isinstance(value, list):
            value = [*(old or []), *value]
        elif isinstance(value, dict):
            value = {**(old or {}), **value}
        self.settings[name] = value

    def patch(
        self, spec: Mapping[str, Any] | None = None, main: Mapping[str, Any] | None = None, **metadata: Any
    ) -> None:
        """Add to the patch of the pods: fields of their spec, of the main container, labels and annotations."""
        given = {name: value for name, value in (spec or {}).items() if value not in (None, "", [], {})}
        if pod := merge(self.settings.get("pod", {}), pod_patch(given, main, **metadata)):
            self.settings["pod"] = pod

    @property
    def pod_spec(self) -> Mapping[str, Any]:
        spec: Mapping[str, Any] = self.settings.get("pod", {}).get("spec", {})
        return spec

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def name_differences(self, main: Fields, expected: dict[str, Any], others: list[Fields]) -> None:
        """Name what the pods of other roles have otherwise, because kubetrain's pods are all alike.

        Args:
            main: The template that all pods get, of which what has no counterpart is left.
            expected: All its fields, also those without content.
        """
        taken = expected.keys() - Fields(main.content).leaves().keys()
        for other in others:
            found = Fields(other.content).leaves(with_empty=True)
            for name, value in found.items():
                if expected.get(name) != value:
                    instead = f"all pods are alike: they get what {main.path} has"
                    self.unmapped.append(Unmapped.of(other.path_of(name), value, instead))
            if more := sorted(taken - found.keys()):
                self.note(f"all pods are alike, so those of {other.path} get these fields too: {', '.join(more)}")
            other.content.clear()
