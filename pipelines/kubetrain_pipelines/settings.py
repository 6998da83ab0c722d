"""--set name=value: the parameters of a run, and the settings of its training, by one kind of name."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.placement import Placement
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.errors import InvalidSetting, did_you_mean
from kubetrain_trainer.settings import Settings

PARAMETERS = {
    "dataset_uri": str,
    "model_uri": str,
    "s3_endpoint": str,
    "dataset_access": str,
    "workers": int,
    "processes_per_worker": int,
    "min_workers": int,
    "min_accuracy": float,
}
PYTORCH_ONLY = ("processes_per_worker", "min_workers")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    framework: str
    parameters: dict[str, Any] = field(default_factory=dict)
    config: TrainConfig = field(default_factory=TrainConfig)
    placement: Placement = field(default_factory=Placement)
    storage: Storage = field(default_factory=Storage)


def parameters_of(framework: str) -> list[str]:
    """The parameters of a framework's pipeline."""
    return [name for name in PARAMETERS if framework == "pytorch" or name not in PYTORCH_ONLY]


def parse_settings(
    framework: str, pairs: Iterable[str], names: Sequence[str] = (), beside: Sequence[type[Settings]] = ()
) -> RunSettings:
    """
    Args:
        names: The parameters that may be set beside the settings of the training.
        beside: Settings of other kinds that may be set too: Placement, Storage.

    Raises:
        InvalidSetting: for a pair that is none, an unknown name (with the nearest valid one), or an unusable value.
    """
    parameters: dict[str, Any] = {}
    taken: tuple[type[Settings], ...] = (TrainConfig, *beside)
    settings: dict[type[Settings], dict[str, Any]] = {kind: {} for kind in taken}
    kinds = {name: kind for kind in taken for name in kind.names()}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise InvalidSetting(f"--set takes name=value, not '{pair}'")
        if name in names:
            parameters[name] = _parse_parameter(name, text)
        elif name in kinds:
            settings[kinds[name]][name] = kinds[name].parse(name, text)
        else:
            raise InvalidSetting(f"unknown setting '{name}': {did_you_mean(name, [*names, *kinds])}")
    return RunSettings(
        framework=framework,
        parameters=parameters,
        config=TrainConfig.from_dict(settings[TrainConfig]),
        placement=Placement.from_dict(settings.get(Placement, {})),
        storage=Storage.from_dict(settings.get(Storage, {})),
    )


def _parse_parameter(name: str, text: str) -> Any:
    kind = PARAMETERS.get(name, str)
    try:
        return kind(text)
    except ValueError:
        described = {int: "a whole number", float: "a number"}[kind]
        raise InvalidSetting(f"{name} must be {described}, not '{text}'") from None
