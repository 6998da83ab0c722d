"""Settings that `kubetrain train` does not take, and the store from which the pods of one job fetch your code."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.transfer_container import with_code
from kubetrain_pipelines.definitions.images import COMPONENTS
from kubetrain_pipelines.definitions.pipeline_parameters import PARAMETERS, Parameter
from kubetrain_pipelines.requests import bring_code
from kubetrain_pipelines.requests.parse_parameters import OBJECTS, read_parameters
from kubetrain_trainer.errors import InvalidSetting

STORE = [
    replace(parameter, default="") if parameter.is_required else parameter
    for parameter in PARAMETERS
    if parameter.name in ("model_uri", "s3_endpoint", "s3_secret")
]
"""The parameters of the store that brings code, which nothing else of one job uses."""

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
OF_RUNS = {parameter.name for parameter in PARAMETERS} | {*Storage.names()}


def check_settings(declared: Iterable[Parameter], pairs: Iterable[str], file: Path | None, *, cluster: bool) -> None:
    """
    Raises:
        InvalidSetting: if a setting is an option here, or applies only to a cluster or to runs of a pipeline.
    """
    in_file = read_parameters(file) if file else {}
    accepted = {name for item in declared for name in (item.name, *_settings_in(item))}
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


def fetching_code(training: TrainingJob, settings: Mapping[str, Any]) -> TrainingJob:
    """Return the training, whose pods fetch the archive that its configuration names, if any.

    Raises:
        InvalidSetting: if they could not.
    """
    store = {item.name: settings.get(item.name, item.default) for item in STORE}
    if not training.config.code:
        _check_unused(settings)
        return training
    bring_code.check_store(store["model_uri"])
    run = RunParameters(
        dataset_uri="none",  # the job mounts its dataset
        framework=training.framework,
        pipeline=training.pipeline,
        run_id=training.run_id,
        train_config=training.config,
        placement=training.placement,
        components_image=COMPONENTS,
        **store,
    )
    return replace(training, placement=with_code(run).placement)


def _check_unused(settings: Mapping[str, Any]) -> None:
    for name in (item.name for item in STORE if item.name in settings):
        raise InvalidSetting(f"{name} has no effect on one job, except for its code: add --code, or leave it out")
