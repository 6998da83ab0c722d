"""Settings that `kubetrain train` does not take, although other commands do, and what to use instead."""

from collections.abc import Iterable
from pathlib import Path

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.placement import Placement
from kubetrain_pipelines.parse_parameters import OBJECTS, read_parameters
from kubetrain_pipelines.pipeline_parameters import PARAMETERS, Parameter
from kubetrain_trainer.errors import InvalidSetting

AS_OPTIONS = {
    "dataset_uri": "--data",
    "model_uri": "--output",
    "run_id": "--run-id",
    "framework": "--framework",
    "workers": "--workers",
    "min_workers": "--min-workers",
    "max_workers": "--max-workers",
    "processes_per_worker": "--processes-per-worker",
    "launcher": "--launcher",
    "max_restarts": "--max-restarts",
}
OF_JOBS = {Placement.PARAMETER, *Placement.names()}
OF_RUNS = {each.name for each in PARAMETERS} | {*Storage.names()}


def check_settings(declared: Iterable[Parameter], pairs: Iterable[str], file: Path | None, *, cluster: bool) -> None:
    """
    Raises:
        InvalidSetting: if a setting is an option here, or applies only to a cluster or to runs of a pipeline.
    """
    in_file = read_parameters(file) if file else {}
    accepted = {name for each in declared for name in (each.name, *_settings_in(each))}
    for name in [*in_file, *(pair.partition("=")[0] for pair in pairs)]:
        if name in accepted:
            continue
        if name in AS_OPTIONS:
            raise InvalidSetting(f"{name} is an option of this command: use {AS_OPTIONS[name]}")
        if name in OF_JOBS and not cluster:
            raise InvalidSetting(f"{name} applies only to a job on a cluster: add --cluster, or leave it out")
        if name in OF_RUNS:
            raise InvalidSetting(
                f"{name} applies only to runs of a pipeline: use `kubetrain run` or `kubetrain submit`"
            )


def _settings_in(parameter: Parameter) -> Iterable[str]:
    return OBJECTS[parameter.name].names() if parameter.name in OBJECTS else ()
